//! Given and renewed files: one of the two groups is in use.

use super::{Expiries, Expiry, ReloadEvent, Watched};
use crate::tls::{ClientFiles, RenewableFiles};

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
        self.given().reloading().files()
    }

    /// The expiries of the files in use, always under the path of the given certificate: a metric of its own for the renewed
    /// file would leave the other one at its last value.
    fn expiries(&self) -> Expiries {
        let chain = |files: &ClientFiles| files.reloading().inputs.first().map(|input| input.path.clone());
        let (given, used) = (chain(self.given()), chain(self.current()));
        let mut expiries = self.current().reloading().expiries();
        for Expiry::Certificate { file: path, .. } | Expiry::RevocationList { file: path, .. } in
            &mut expiries
        {
            if let (Some(given), true) = (&given, Some(&*path) == used.as_ref()) {
                path.clone_from(given);
            }
        }
        expiries
    }
}
