//! CreateVolume.

use std::collections::BTreeMap;
use std::time::SystemTime;

use csi_proto::csi::v1 as csi;

use super::{checked_name, or_discard, parameters};
use crate::capability::{Access, Capability};
use crate::capacity::{SizeRange, minimum_bytes};
use crate::driver::{Driver, OperationGuard};
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::snapshot::SnapshotRecord;
use crate::volume::{ContentSource, Format, Phase, VolumeKind, VolumeRecord};

/// A checked CreateVolume request.
struct Wanted {
    capabilities: Vec<Capability>,
    range: SizeRange,
    kind: Option<VolumeKind>,
    source: Option<ContentSource>,
    parameters: BTreeMap<String, String>,
    mutable_parameters: BTreeMap<String, String>,
}

/// The source of a new volume's content, locked while the guard exists.
struct Source {
    from: SourceRecord,
    _guard: OperationGuard,
}

enum SourceRecord {
    Snapshot(SnapshotRecord),
    Volume(Box<VolumeRecord>),
}

impl SourceRecord {
    fn kind_and_bytes(&self) -> (VolumeKind, u64) {
        match self {
            Self::Snapshot(snapshot) => (snapshot.kind, snapshot.size_bytes),
            Self::Volume(volume) => (volume.kind, volume.capacity_bytes),
        }
    }
}

impl Driver {
    pub(crate) fn create_volume(
        &self,
        request: csi::CreateVolumeRequest,
    ) -> Result<csi::CreateVolumeResponse, CallError> {
        let name = checked_name(&request.name)?.to_owned();
        let requirement = request.accessibility_requirements.clone();
        let wanted = self.wanted(request)?;
        let _name = self.lock("volume named", &name)?;
        match self.volumes.by_name(&name) {
            Some(existing) if existing.is_ready() => {
                wanted.matches(&existing)?;
                return Ok(self.created(&existing));
            }
            // An earlier attempt failed, and so did its cleanup.
            Some(leftover) => {
                let _volume = self.lock("volume", &leftover.id)?;
                self.discard_volume(leftover)?;
            }
            None => {}
        }
        self.check_topology(requirement.as_ref(), "choose another node")?;
        let source = wanted.source.as_ref().map(|source| self.lock_source(source)).transpose()?;
        let (record, _volume) = self.reserve_volume(name, wanted, source.as_ref())?;
        let filled = self.fill_volume(record.clone(), source.as_ref());
        let volume = or_discard(filled, "volume", || self.discard_volume(record))?;
        tracing::info!(volume = %volume.id, name = volume.name, kind = volume.kind.name(), bytes = volume.capacity_bytes, "volume created");
        Ok(self.created(&volume))
    }

    fn wanted(&self, request: csi::CreateVolumeRequest) -> Result<Wanted, CallError> {
        parameters::mutable(&request.mutable_parameters, &self.config.mutable_parameters)?;
        Ok(Wanted {
            capabilities: Capability::parse_all(&request.volume_capabilities)?,
            range: SizeRange::parse(request.capacity_range.as_ref())?,
            kind: parameters::volume_kind(&request.parameters)?,
            source: request.volume_content_source.as_ref().map(ContentSource::parse).transpose()?,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        })
    }

    fn lock_source(&self, source: &ContentSource) -> Result<Source, CallError> {
        match source {
            ContentSource::Snapshot(id) => {
                let guard = self.lock("snapshot", id)?;
                let snapshot = self.snapshots.by_id(id).filter(SnapshotRecord::is_ready);
                let from = SourceRecord::Snapshot(snapshot.ok_or_else(|| CallError::no_snapshot(id))?);
                Ok(Source { from, _guard: guard })
            }
            ContentSource::Volume(id) => {
                let (volume, guard) = self.lock_volume(id.as_str())?;
                Ok(Source { from: SourceRecord::Volume(Box::new(volume)), _guard: guard })
            }
        }
    }

    /// Reserves the space for a volume and records its creation.
    fn reserve_volume(
        &self,
        name: String,
        wanted: Wanted,
        source: Option<&Source>,
    ) -> Result<(VolumeRecord, OperationGuard), CallError> {
        let source_facts = source.map(|source| source.from.kind_and_bytes());
        let kind = wanted.kind_of_volume(source_facts.map(|(kind, _)| kind))?;
        let source_bytes = source_facts.map_or(0, |(_, bytes)| bytes);
        let minimum = minimum_bytes(kind, &wanted.capabilities).max(source_bytes);
        let capacity_bytes = wanted.range.choose(kind, minimum)?;
        let id = ResourceId::generate("vol", SystemTime::now());
        let guard = self.lock("volume", &id)?;
        let record = VolumeRecord {
            id,
            name,
            phase: Phase::Creating,
            kind,
            capacity_bytes,
            parameters: wanted.parameters,
            mutable_parameters: wanted.mutable_parameters,
            source: wanted.source,
            format: Format::Unknown,
            grow: kind == VolumeKind::Loop && source.is_some() && capacity_bytes > source_bytes,
            attachment: None,
            staged: None,
            published: BTreeMap::new(),
        };
        let _admission = self.admission();
        self.check_space(capacity_bytes)?;
        self.volumes.put(record.clone())?;
        Ok((record, guard))
    }

    fn fill_volume(
        &self,
        mut volume: VolumeRecord,
        source: Option<&Source>,
    ) -> Result<VolumeRecord, CallError> {
        let (id, kind, bytes) = (&volume.id, volume.kind, volume.capacity_bytes);
        match source.map(|source| &source.from) {
            None => self.data.create(id, kind, bytes)?,
            Some(SourceRecord::Snapshot(snapshot)) => self.data.copy(&snapshot.id, id, kind, bytes)?,
            Some(SourceRecord::Volume(from)) => self.copy_at_rest(from, id, bytes)?,
        }
        volume.phase = Phase::Ready;
        self.volumes.put(volume.clone())?;
        Ok(volume)
    }

    fn created(&self, volume: &VolumeRecord) -> csi::CreateVolumeResponse {
        csi::CreateVolumeResponse { volume: Some(volume.to_csi(self.config.topology.clone())) }
    }
}

impl Wanted {
    /// Returns the kind of a new volume: as requested, else as its source, else as its capabilities need.
    fn kind_of_volume(&self, source: Option<VolumeKind>) -> Result<VolumeKind, CallError> {
        let own_device = |c: &Capability| c.access == Access::Block || c.fs_type().is_some();
        let by_capability =
            if self.capabilities.iter().any(own_device) { VolumeKind::Loop } else { VolumeKind::Directory };
        let kind = self.kind.or(source).unwrap_or(by_capability);
        if source.is_some_and(|source| source != kind) {
            return Err(CallError::invalid(
                "parameters",
                format!("kind={}", kind.name()),
                format!("the kind of the content source, {}", source.map_or("", VolumeKind::name)),
            ));
        }
        if !self.capabilities.iter().all(|capability| kind.provides(capability)) {
            return Err(CallError::invalid(
                "volume_capabilities",
                format!("a block device or an fs_type, with kind={}", kind.name()),
                "kind=loop, since a directory is not a device and has no filesystem of its own",
            ));
        }
        Ok(kind)
    }

    /// Checks that an existing volume matches the request.
    fn matches(&self, existing: &VolumeRecord) -> Result<(), CallError> {
        let differs = |difference, found: String, expected: String| CallError::Incompatible {
            subject: format!("volume {:?}", existing.name),
            difference,
            found,
            expected,
        };
        if !self.range.contains(existing.capacity_bytes) {
            return Err(differs("size", format!("{} bytes", existing.capacity_bytes), self.range.describe()));
        }
        if self.parameters != existing.parameters {
            return Err(differs(
                "set of parameters",
                format!("{:?}", existing.parameters),
                format!("{:?}", self.parameters),
            ));
        }
        if self.source != existing.source {
            return Err(differs(
                "content source",
                format!("{:?}", existing.source),
                format!("{:?}", self.source),
            ));
        }
        if !self.capabilities.iter().all(|capability| existing.kind.provides(capability)) {
            return Err(differs("kind", existing.kind.name().to_owned(), VolumeKind::Loop.name().to_owned()));
        }
        Ok(())
    }
}
