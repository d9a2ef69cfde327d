//! A fake `node-driver-registrar`: a socket that serves GetInfo and records the notifications.

use std::path::Path;
use std::time::Duration;

use csi_proto::pluginregistration::v1::registration_server::{Registration, RegistrationServer};
use csi_proto::pluginregistration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Returns the GetInfo response of a valid driver.
pub(crate) fn plugin(name: &str) -> PluginInfo {
    PluginInfo {
        r#type: "CSIPlugin".into(),
        name: name.into(),
        endpoint: format!("/plugins/{name}/csi.sock"),
        supported_versions: vec!["1.0.0".into()],
    }
}

/// A running registrar. Dropping it is like SIGKILL: the socket file remains.
pub(crate) struct Registrar {
    notifications: mpsc::UnboundedReceiver<RegistrationStatus>,
    server: JoinHandle<()>,
}

impl Registrar {
    pub(crate) fn start(socket: &Path, info: PluginInfo) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let (sender, notifications) = mpsc::unbounded_channel();
        let service = RegistrationServer::new(Service { info, sender });
        let server = Server::builder().add_service(service);
        let server = tokio::spawn(async move {
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("a server");
        });
        Self { notifications, server }
    }

    /// Returns the next notification within five virtual minutes: success, or the error.
    pub(crate) async fn notified(&mut self) -> Result<(), String> {
        let status = timeout(Duration::from_secs(300), self.notifications.recv()).await;
        let status = status.expect("a notification in time").expect("the registrar runs");
        assert_eq!(status.plugin_registered, status.error.is_empty(), "{status:?}");
        if status.plugin_registered { Ok(()) } else { Err(status.error) }
    }

    pub(crate) fn was_not_notified(&mut self) -> bool {
        self.notifications.try_recv().is_err()
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Service {
    info: PluginInfo,
    sender: mpsc::UnboundedSender<RegistrationStatus>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.sender.send(status.into_inner()).map_err(|_| Status::internal("the test is over"))?;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
