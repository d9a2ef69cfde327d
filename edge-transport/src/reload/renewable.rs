//! Two groups of files of which one is in use.

use super::{Expiries, ReloadEvent, Watched};
use crate::tls::RenewableFiles;

/// Reports the files in use. The other ones are no problem, whatever they are.
impl Watched for RenewableFiles {
    fn check(&self) -> Option<ReloadEvent> {
        let other = self.other().clone();
        let used = self.current().reloading().check();
        // Read last: these files may be in use from now on.
        let other = other.reloading().check();
        used.or_else(|| other.filter(|event| matches!(event, ReloadEvent::Reloaded { .. })))
    }

    #[cfg(any(feature = "metrics", test))]
    fn is_invalid(&self) -> bool {
        self.current().reloading().is_invalid()
    }

    fn unusable(&self) -> Option<String> {
        self.current().reloading().unusable()
    }

    fn files(&self) -> String {
        self.current().reloading().files()
    }

    fn expiries(&self) -> Expiries {
        self.current().reloading().expiries()
    }
}
