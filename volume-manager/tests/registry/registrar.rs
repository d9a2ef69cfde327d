//! A registrar as `node-driver-registrar` is one: a socket, one answer, and an ear for what becomes of it.

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

/// What a registrar says of a driver with nothing wrong.
pub(crate) fn plugin(name: &str) -> PluginInfo {
    PluginInfo {
        r#type: "CSIPlugin".into(),
        name: name.into(),
        endpoint: format!("/plugins/{name}/csi.sock"),
        supported_versions: vec!["1.0.0".into()],
    }
}

/// A running registrar. When it is dropped it dies as by SIGKILL: the socket file stays.
pub(crate) struct Registrar {
    told: mpsc::UnboundedReceiver<RegistrationStatus>,
    server: JoinHandle<()>,
}

impl Registrar {
    pub(crate) fn start(socket: &Path, info: PluginInfo) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let (telling, told) = mpsc::unbounded_channel();
        let service = RegistrationServer::new(Service { info, telling });
        let server = Server::builder().add_service(service);
        let server = tokio::spawn(async move {
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("a server");
        });
        Self { told, server }
    }

    /// The next notification within five virtual minutes: nothing if the driver was registered, else why it was not.
    pub(crate) async fn told(&mut self) -> Result<(), String> {
        let status = timeout(Duration::from_secs(300), self.told.recv()).await;
        let status = status.expect("a notification in time").expect("the registrar runs");
        assert_eq!(status.plugin_registered, status.error.is_empty(), "{status:?}");
        if status.plugin_registered { Ok(()) } else { Err(status.error) }
    }

    pub(crate) fn was_told_nothing(&mut self) -> bool {
        self.told.try_recv().is_err()
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Service {
    info: PluginInfo,
    telling: mpsc::UnboundedSender<RegistrationStatus>,
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
        self.telling.send(status.into_inner()).map_err(|_| Status::internal("the test is over"))?;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
