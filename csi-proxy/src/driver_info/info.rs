//! The driver info of one node, restricted to known values, and its record on disk.
//!
//! The schema of the record is `proto/edge/csi/v1/state.proto`. The record is preceded by its CRC-32, little-endian.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use csi_proto::csi::v1::plugin_capability::{Type, volume_expansion::Type as ExpansionType};
use prost::Message;

use super::question::{QUESTIONS, Question};
use crate::generated::state as pb;

/// The maximum size of a record in bytes, and of an answer, which is refused before it is decoded. Typical answers have
/// a few hundred.
pub const MAX_RECORD: usize = 64 * 1024;

/// The answer of a driver: the response without unknown values, or the message of the `UNIMPLEMENTED` that reports a
/// missing service.
pub(crate) type Fact = Result<Bytes, String>;

/// The known answers of a driver on a node, by start-up call. They are small and contain no secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info(BTreeMap<Question, Fact>);

impl Info {
    pub(super) fn get(&self, question: Question) -> Option<&Fact> {
        self.0.get(&question)
    }

    /// Stores an answer and returns whether it changed.
    pub(super) fn put(&mut self, question: Question, fact: Fact) -> bool {
        let is_new = self.get(question) != Some(&fact);
        self.0.insert(question, fact);
        is_new
    }

    pub(super) fn decoded<M: Message + Default>(&self, question: Question) -> Option<M> {
        M::decode(self.get(question)?.as_ref().ok()?.clone()).ok()
    }

    pub(super) fn has_service(&self, wanted: ServiceType) -> bool {
        let plugin = self.decoded::<csi::GetPluginCapabilitiesResponse>(Question::PluginCapabilities);
        plugin.is_some_and(|plugin| plugin.has_service(wanted))
    }

    /// Whether all answers are known.
    pub(super) fn is_complete(&self, with_node_info: bool) -> bool {
        stored_questions(with_node_info).all(|question| self.0.contains_key(&question))
    }

    /// Encodes a record of the answers at that time, in whole seconds.
    #[must_use]
    pub fn encode(&self, as_of: SystemTime) -> Bytes {
        let fact = |(question, fact): (&Question, &Fact)| pb::Fact {
            question: *question as u32,
            answer: fact.as_ref().ok().cloned().unwrap_or_default(),
            not_offered: fact.as_ref().err().cloned(),
        };
        let as_of = as_of.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let record = pb::DriverInfo { as_of, facts: self.0.iter().map(fact).collect() }.encode_to_vec();
        [&crc32fast::hash(&record).to_le_bytes(), &record[..]].concat().into()
    }

    /// Decodes a record and its time. `None` if the record is damaged or too large.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, SystemTime)> {
        let (sum, record) = bytes.split_first_chunk()?;
        if bytes.len() > MAX_RECORD || crc32fast::hash(record) != u32::from_le_bytes(*sum) {
            return None;
        }
        let pb::DriverInfo { as_of, facts } = pb::DriverInfo::decode(record).ok()?;
        let fact = |fact: pb::Fact| {
            let (question, _) = QUESTIONS.get(usize::try_from(fact.question).ok()?)?;
            Some((*question, fact.not_offered.map_or(Ok(fact.answer), Err)))
        };
        let info = facts.into_iter().map(fact).collect::<Option<_>>()?;
        Some((Self(info), UNIX_EPOCH.checked_add(Duration::from_secs(as_of))?))
    }
}

/// The start-up calls whose answers are stored.
pub(super) fn stored_questions(with_node_info: bool) -> impl Iterator<Item = Question> {
    let is_stored = move |question: &Question| match question {
        Question::NodeInfo => with_node_info,
        Question::Probe => false,
        _ => true,
    };
    QUESTIONS.into_iter().map(|(question, _)| question).filter(is_stored)
}

/// The answer without repeated capabilities, and without unknown ones, on which a client of an older spec would fail.
/// `None` if the answer cannot be decoded.
pub(super) fn masked(question: Question, answer: Bytes) -> Option<Bytes> {
    macro_rules! masked {
        ($response:ident) => {
            // 0 is UNKNOWN in all these enums.
            masked!($response, |capability| capability.rpc_type().is_some_and(|rpc| rpc as i32 != 0))
        };
        ($response:ident, $known:expr) => {{
            let mut response = csi::$response::decode(answer).ok()?;
            response.capabilities.retain($known);
            response.capabilities = distinct(response.capabilities);
            response.encode_to_vec().into()
        }};
    }
    Some(match question {
        Question::PluginCapabilities => {
            masked!(GetPluginCapabilitiesResponse, |capability| match &capability.r#type {
                Some(Type::Service(service)) => known::<ServiceType>(service.r#type),
                Some(Type::VolumeExpansion(expansion)) => known::<ExpansionType>(expansion.r#type),
                None => false,
            })
        }
        Question::ControllerCapabilities => masked!(ControllerGetCapabilitiesResponse),
        Question::GroupControllerCapabilities => masked!(GroupControllerGetCapabilitiesResponse),
        Question::NodeCapabilities => masked!(NodeGetCapabilitiesResponse),
        // This response has no enum: no value can be unknown.
        Question::NodeInfo => csi::NodeGetInfoResponse::decode(answer.clone()).ok().map(|_| answer)?,
        Question::PluginInfo | Question::Probe => answer,
    })
}

/// Drops repeated capabilities. The spec has few, so that each one is compared with few.
fn distinct<C: PartialEq>(capabilities: Vec<C>) -> Vec<C> {
    let mut found = Vec::new();
    for capability in capabilities {
        if !found.contains(&capability) {
            found.push(capability);
        }
    }
    found
}

fn known<E: TryFrom<i32>>(number: i32) -> bool {
    number != 0 && E::try_from(number).is_ok()
}

/// The capabilities that more than half of the answers have, so that a few nodes neither remove nor add one. `None` if
/// at least half of them report a missing service, or there is no answer.
pub(super) fn of_most<'a>(answers: impl Iterator<Item = Option<&'a Fact>>) -> Option<Bytes> {
    let (mut nodes, mut offered, mut counts) = (0_usize, 0_usize, Vec::<(&'a [u8], usize)>::new());
    for answer in answers {
        nodes += 1;
        // Capabilities are the only field of these messages and are encoded here, so that equal ones have equal bytes.
        let fields = answer.and_then(|fact| crate::call::protobuf::fields(fact.as_ref().ok()?));
        let Some(fields) = fields else { continue };
        offered += 1;
        for capability in fields.map(|field| field.whole).collect::<BTreeSet<_>>() {
            match counts.iter_mut().find(|(known, _)| *known == capability) {
                Some((_, count)) => *count += 1,
                None => counts.push((capability, 1)),
            }
        }
    }
    counts.retain(|(_, count)| 2 * count > nodes);
    (2 * offered > nodes)
        .then(|| counts.iter().map(|(capability, _)| *capability).collect::<Vec<_>>().concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minority_changes_no_capability() {
        let rpcs = |numbers: &[i32]| -> Fact {
            use csi::controller_service_capability::rpc::Type;
            let known = numbers.iter().map(|number| Type::try_from(*number).unwrap());
            Ok(known.collect::<csi::ControllerGetCapabilitiesResponse>().encode_to_vec().into())
        };
        let most = |facts: &[Fact]| of_most(facts.iter().map(Some)).map(Ok);
        let (honest, less, more) = (rpcs(&[1, 3]), rpcs(&[]), rpcs(&[1, 3, 5, 5]));
        let none: Fact = Err("no".to_owned());
        for liar in [&less, &more, &none] {
            assert_eq!(most(&[honest.clone(), liar.clone(), honest.clone()]), Some(honest.clone()));
        }
        // Of two nodes each one counts.
        assert_eq!(most(&[honest.clone(), less.clone()]), Some(less));
        assert_eq!(most(&[honest.clone(), more]), Some(honest.clone()));
        assert_eq!((most(&[honest, none]), of_most(std::iter::empty())), (None, None));
    }

    #[test]
    fn a_capability_is_kept_once() {
        use csi::controller_service_capability::rpc::Type;
        let rpcs = |rpcs: &[Type]| -> Bytes {
            let rpcs = rpcs.iter().copied();
            rpcs.collect::<csi::ControllerGetCapabilitiesResponse>().encode_to_vec().into()
        };
        let repeated = rpcs(&[Type::CreateDeleteVolume, Type::ListVolumes].repeat(1000));
        let once = rpcs(&[Type::CreateDeleteVolume, Type::ListVolumes]);
        assert_eq!(masked(Question::ControllerCapabilities, repeated), Some(once));
    }

    #[test]
    fn record_round_trips_and_damage_is_detected() {
        let mut info = Info::default();
        info.put(Question::PluginInfo, Ok(Bytes::from_static(b"info")));
        info.put(Question::PluginCapabilities, Ok(Bytes::from_static(b"plugin")));
        info.put(Question::ControllerCapabilities, Ok(Bytes::new()));
        info.put(Question::GroupControllerCapabilities, Err("no such service".to_owned()));
        info.put(Question::NodeCapabilities, Ok(Bytes::from_static(b"service")));
        let as_of = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let bytes = info.encode(as_of);
        for end in 0..bytes.len() {
            assert_eq!(Info::decode(&bytes[..end]), None, "cut after {end} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Info::decode(&changed), None, "bit {bit} flipped");
        }
        assert_eq!(Info::decode(&bytes), Some((info, as_of)));
    }
}
