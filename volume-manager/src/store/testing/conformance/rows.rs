//! The cases of the rows alone.

use super::Medium;
use super::cases::{Outcome, equal};
use crate::store::{MAX_ROW_BYTES, RowTable, RowWrite, Rows};

/// The key and the value of a row.
type Row = (Vec<u8>, Vec<u8>);

/// The keys of a table that a store may use, with values.
fn samples(table: RowTable) -> Vec<Row> {
    let mut samples = match table {
        RowTable::Records => vec![
            (vec![1, 0], Vec::new()),
            (vec![0xff; 1025], b"\0\xff\n\"\\ ".to_vec()),
            (b"\x01driver/v \"\n\xfe".to_vec(), (0..=u8::MAX).cycle().take(MAX_ROW_BYTES).collect()),
        ],
        RowTable::Aside => [0, 1, u64::MAX].map(|key| (key.to_be_bytes().into(), vec![7; 3])).into(),
        RowTable::Counters => {
            ["sequence", "aside"].map(|key| (key.into(), u64::MAX.to_be_bytes().into())).into()
        }
    };
    samples.sort();
    samples
}

fn put(table: RowTable, (key, value): &Row) -> RowWrite {
    RowWrite { table, key: key.clone(), value: Some(value.clone()) }
}

fn write(rows: &mut dyn Rows, batch: &[RowWrite]) -> Outcome {
    rows.write(batch).map_err(|error| format!("a write failed: {error}"))
}

fn get(rows: &mut dyn Rows, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
    rows.get(table, key).map_err(|error| format!("a get failed: {error}"))
}

/// Returns the rows of a table, sorted.
fn scan(rows: &mut dyn Rows, table: RowTable) -> Result<Vec<Row>, String> {
    let mut found = Vec::new();
    rows.scan(table, &mut |key, value| found.push((key.to_vec(), value.to_vec())))
        .map_err(|error| format!("a scan failed: {error}"))?;
    found.sort();
    Ok(found)
}

/// Checks that a table has exactly these rows. The values are compared but not printed, since they are large.
fn expect(rows: &mut dyn Rows, table: RowTable, expected: &[Row]) -> Outcome {
    let found = scan(rows, table)?;
    equal(&format!("the number of rows of {}", table.name()), &found.len(), &expected.len())?;
    if found != expected {
        return Err(format!("a scan of {}: the rows differ from those that were written", table.name()));
    }
    for (key, value) in expected {
        if get(rows, table, key)?.as_ref() != Some(value) {
            return Err(format!(
                "a get of {}: the value differs from the one that was written",
                table.name()
            ));
        }
    }
    Ok(())
}

fn fill(rows: &mut dyn Rows) -> Outcome {
    let all = RowTable::ALL.map(|table| samples(table).iter().map(|row| put(table, row)).collect::<Vec<_>>());
    write(rows, &all.concat())
}

pub(super) fn bytes_round_trip(medium: &mut Medium<'_>) -> Outcome {
    let mut rows = medium.rows()?;
    for table in RowTable::ALL {
        for row in samples(table) {
            equal("a row that was not written", &get(&mut rows, table, &row.0)?, &None)?;
            write(&mut rows, &[put(table, &row)])?;
            if get(&mut rows, table, &row.0)?.as_ref() != Some(&row.1) {
                let (key, bytes) = (row.0.escape_ascii(), row.1.len());
                return Err(format!("{} {key}: not the {bytes} bytes that were written", table.name()));
            }
        }
    }
    Ok(())
}

pub(super) fn batches_write_and_remove(medium: &mut Medium<'_>) -> Outcome {
    let mut rows = medium.rows()?;
    write(&mut rows, &[])?;
    fill(&mut rows)?;
    for table in RowTable::ALL {
        let mut expected = samples(table);
        let removed = expected.pop().unwrap_or_default().0;
        if let Some(first) = expected.first_mut() {
            first.1 = 5_u64.to_be_bytes().into();
        }
        let removal = RowWrite { table, key: removed.clone(), value: None };
        let changed = expected.first().map(|row| put(table, row));
        write(&mut rows, &changed.into_iter().chain([removal.clone()]).collect::<Vec<_>>())?;
        // A removed row need not exist.
        write(&mut rows, &[removal])?;
        equal("a removed row", &get(&mut rows, table, &removed)?, &None)?;
        expect(&mut rows, table, &expected)?;
    }
    Ok(())
}

pub(super) fn scans_visit_each_row_once(medium: &mut Medium<'_>) -> Outcome {
    let mut rows = medium.rows()?;
    for table in RowTable::ALL {
        equal("the rows of an empty medium", &scan(&mut rows, table)?.len(), &0)?;
    }
    fill(&mut rows)?;
    RowTable::ALL.into_iter().try_for_each(|table| expect(&mut rows, table, &samples(table)))
}

pub(super) fn rows_are_durable(medium: &mut Medium<'_>) -> Outcome {
    let mut rows = medium.rows()?;
    fill(&mut rows)?;
    rows.reopen().map_err(|error| format!("a reopening failed: {error}"))?;
    RowTable::ALL.into_iter().try_for_each(|table| expect(&mut rows, table, &samples(table)))?;
    drop(rows);
    let mut rows = medium.rows()?;
    RowTable::ALL.into_iter().try_for_each(|table| expect(&mut rows, table, &samples(table)))
}
