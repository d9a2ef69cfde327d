//! What is stored, and when.

use super::*;

#[test]
fn stored_info_answers_with_its_age() {
    let mut bench = Bench::one();
    bench.round(&Driver { services: vec![1, 3], ..Driver::new() });
    let (record, as_of) = bench.cache.take_record(&own(), false).unwrap();
    let (kept, at) = Info::decode(&record).unwrap();
    assert_eq!(at, as_of);
    for add_first in [true, false] {
        let mut later = Bench::new(Mode::Each { node_info: false });
        if add_first {
            later.cache.add(&own(), later.now);
        }
        later
            .cache
            .restore([(own(), kept.clone(), as_of), (key("edge-9"), Info::default(), as_of)], later.now);
        later.cache.add(&own(), later.now);
        assert!(matches!(later.answer(Question::ControllerCapabilities), Some(Ok(_))));
        let status = later.cache.status(later.of.as_ref(), as_of + SECOND);
        assert_eq!((status.reached, status.ready, status.complete), (None, false, true));
        assert_eq!((status.age, later.cache.entries().count()), (Some(SECOND), 1));
    }
}

#[test]
fn stores_unchanged_record_hourly_and_after_failure() {
    let mut bench = Bench::one();
    let start = bench.time();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let round = |bench: &mut Bench, seconds: u64, driver: &Driver| {
        let (_, next) = bench.cache.take_due(0, bench.now);
        bench.now = next.unwrap();
        let (due, _) = bench.cache.take_due(1, bench.now);
        let mut next = Some(Question::PluginInfo);
        while let Some(question) = next {
            next = bench.cache.answered(&due[0], question, driver.answer(question), bench.now, at(seconds)).0;
        }
        let saved = bench.cache.take_record(&own(), false);
        saved.map(|(_, as_of)| as_of)
    };
    assert_eq!(round(&mut bench, 0, &Driver::new()), Some(at(0)));
    assert_eq!(round(&mut bench, 5, &Driver::new()), None, "one write at a time");
    bench.cache.saved(&own(), at(0), false);
    assert_eq!(round(&mut bench, 10, &Driver::new()), Some(at(10)));
    bench.cache.saved(&own(), at(10), false);
    assert_eq!(round(&mut bench, 20, &Driver::new()), Some(at(20)));
    bench.cache.saved(&own(), at(20), true);
    assert_eq!(round(&mut bench, 3619, &Driver::new()), None);
    assert_eq!(round(&mut bench, 3620, &Driver::new()), Some(at(3620)));
    bench.cache.saved(&own(), at(3620), true);
    assert_eq!(round(&mut bench, 3700, &Driver::new()), None);
    assert_eq!(round(&mut bench, 3710, &Driver::off()), Some(at(3700)), "from now on the age counts");
    bench.cache.saved(&own(), at(3700), true);
    assert_eq!(round(&mut bench, 3720, &Driver::off()), None);
}
