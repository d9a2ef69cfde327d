//! The orders. Each order is one line, and its answer is one line: `ok ...` or `error ...`.
//!
//! | Order | What it does |
//! |---|---|
//! | `create SOCKET NAME` | creates a volume at the driver, and returns its id |
//! | `publish DRIVER ID CONSUMER TARGET rw` (or `ro`) | publishes a volume, and returns the target path |
//! | `unpublish DRIVER ID CONSUMER` | unpublishes a volume |
//! | `release DRIVER ID CONSUMER` | reconciles with the desired set without this consumer, and does not wait for the end |
//! | `expand DRIVER ID BYTES` | expands a volume to at least this size, and returns its size in bytes |
//! | `explain DRIVER ID` | returns the explanation of a volume's state, or an error if the volume is not managed |
//! | `list` | returns every volume with its state |
//! | `holders` | returns every volume with its consumers; a consumer in transition begins with `!` |
//! | `quarantined` | returns the number of records that cannot be read |
//! | `steps` | returns the number of steps so far |

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use csi_proto::{DriverName, VolumeId};
use edge_csi_tests::csi::{controller, create_volume};
use tokio::io::{AsyncBufReadExt, BufReader};
use volume_manager::driver::{Access, AccessMode, ConsumerSpec, MountPath, VolumeSpec};
use volume_manager::node::{DesiredVolume, Volumes};
use volume_manager::{ConsumerId, VolumeKey};

use super::steps::Steps;

/// The desired set: the publications that this process was asked for and that were not released.
type Wanted = BTreeMap<(VolumeKey, ConsumerId), (Arc<VolumeSpec>, Arc<ConsumerSpec>)>;

type Answer = Result<String, Box<dyn Error>>;

/// Answers orders until the input ends.
pub(super) async fn answer(volumes: Volumes, directory: &Path, steps: &Steps) -> Result<(), Box<dyn Error>> {
    println!("ready");
    let mut wanted = Wanted::new();
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split_whitespace().collect();
        match execute(&volumes, &mut wanted, directory, steps, &words).await {
            Ok(answer) => println!("ok {}", answer.replace('\n', " ")),
            Err(error) => println!("error {}", error.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}

async fn execute(
    volumes: &Volumes,
    wanted: &mut Wanted,
    directory: &Path,
    steps: &Steps,
    words: &[&str],
) -> Answer {
    match words {
        ["create", socket, name] => {
            let created = controller(Path::new(socket)).create_volume(create_volume(name)).await?;
            Ok(created.into_inner().volume.unwrap_or_default().volume_id)
        }
        ["publish", driver, id, consumer, target, path] => {
            let mode = AccessMode::SingleNodeMultiWriter;
            let volume = VolumeSpec::builder(key(driver, id)?, Access::filesystem(), mode).build()?;
            let target = MountPath::new(directory.join(target))?;
            let consumer = ConsumerSpec::new(ConsumerId::new(consumer)?, target).read_only(*path == "ro");
            let (volume, consumer) = (Arc::new(volume), Arc::new(consumer));
            let entry = (volume.key().clone(), consumer.id().clone());
            wanted.insert(entry, (Arc::clone(&volume), Arc::clone(&consumer)));
            let published = volumes.publish(volume, consumer).await?;
            Ok(published.target_path.to_string())
        }
        ["unpublish", driver, id, consumer] => {
            let (key, consumer) = (key(driver, id)?, ConsumerId::new(consumer)?);
            wanted.remove(&(key.clone(), consumer.clone()));
            volumes.unpublish(&key, &consumer).await?;
            Ok(String::new())
        }
        ["release", driver, id, consumer] => {
            wanted.remove(&(key(driver, id)?, ConsumerId::new(consumer)?));
            let mut desired: Vec<DesiredVolume> = Vec::new();
            for (spec, consumer) in wanted.values() {
                match desired.last_mut().filter(|last| last.spec.key() == spec.key()) {
                    Some(last) => last.consumers.push(Arc::clone(consumer)),
                    None => {
                        let (spec, consumers) = (Arc::clone(spec), vec![Arc::clone(consumer)]);
                        desired.push(DesiredVolume { spec, consumers });
                    }
                }
            }
            let reconciled = volumes.reconcile(desired).await?;
            Ok(format!("{} released", reconciled.released))
        }
        ["expand", driver, id, bytes] => {
            let bytes = volumes.expand(&key(driver, id)?, bytes.parse()?).await?;
            Ok(bytes.to_string())
        }
        ["explain", driver, id] => {
            let explained = volumes.explain(&key(driver, id)?).await?;
            Ok(explained.ok_or("the volume is not managed")?.to_string())
        }
        ["list"] => {
            let mut all = Vec::new();
            for key in volumes.list().await? {
                let state = volumes.explain(&key).await?.and_then(|explained| explained.state);
                all.push(state.map_or_else(|| key.to_string(), |state| format!("{key}={state}")));
            }
            Ok(all.join(" "))
        }
        ["holders"] => {
            let mut all = Vec::new();
            for key in volumes.list().await? {
                let mut words = vec![key.id.to_string()];
                for holder in volumes.explain(&key).await?.map(|it| it.consumers).unwrap_or_default() {
                    let settled = holder.wanted && holder.published;
                    words.push(format!("{}{}", if settled { "" } else { "!" }, holder.consumer));
                }
                all.push(words.join(" "));
            }
            Ok(all.join(";"))
        }
        ["quarantined"] => Ok(volumes.quarantined().await?.len().to_string()),
        ["steps"] => Ok(steps.taken().to_string()),
        _ => Err(format!("unknown order {words:?}").into()),
    }
}

fn key(driver: &str, id: &str) -> Result<VolumeKey, Box<dyn Error>> {
    Ok(VolumeKey { driver: DriverName::new(driver)?, id: VolumeId::new(id)? })
}
