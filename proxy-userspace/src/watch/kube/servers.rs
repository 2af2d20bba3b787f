//! Several API servers of one cluster, of which one is asked until it fails: then the next in turn, and after the last
//! the first again. Who had asked hears of the failure and asks again; nothing is repeated here.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Bytes};
use kube::{Client, Config, Error, client::Body};
use tower::{BoxError, service_fn};
use tracing::warn;

use super::connection::{self, Limits};

/// Answers of a load balancer or a server that nobody stands behind.
const NOBODY_THERE: [StatusCode; 3] =
    [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];

struct Server {
    uri: Uri,
    client: Client,
}

struct Servers {
    servers: Vec<Server>,
    /// Which one is asked.
    current: AtomicUsize,
}

/// A client of the server that `config` names and of the `further` ones, to which everything else of `config` applies.
pub(super) fn client(config: &Config, further: &[Uri], limits: Limits) -> Result<Client, Error> {
    let uris = std::iter::once(&config.cluster_url).chain(further);
    let server = |uri: &Uri| {
        let mut config = config.clone();
        config.cluster_url.clone_from(uri);
        Ok(Server { uri: uri.clone(), client: connection::client(&config, limits)? })
    };
    let servers = uris.map(server).collect::<Result<_, Error>>()?;
    let servers = Arc::new(Servers { servers, current: AtomicUsize::new(0) });
    let service = service_fn(move |request| ask(Arc::clone(&servers), request));
    Ok(Client::new(service, config.default_namespace.clone()))
}

async fn ask(
    servers: Arc<Servers>,
    request: Request<Body>,
) -> Result<Response<impl HttpBody<Data = Bytes, Error = BoxError>>, Error> {
    let asked = servers.current.load(Ordering::Relaxed);
    let response = match servers.servers[asked].client.send(request).await {
        Ok(response) => response,
        Err(error) => {
            servers.leave(asked, &error);
            return Err(error);
        }
    };
    if NOBODY_THERE.contains(&response.status()) {
        servers.leave(asked, &response.status());
    }
    Ok(response.map(|body| {
        body.map_err(move |error| {
            servers.leave(asked, &error);
            BoxError::from(error)
        })
    }))
}

impl Servers {
    /// Goes on to the next, unless another request that failed has done so.
    fn leave(&self, asked: usize, why: &dyn std::fmt::Display) {
        let next = (asked + 1) % self.servers.len();
        let moved = self.current.compare_exchange(asked, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() && next != asked {
            let (server, next) = (&self.servers[asked].uri, &self.servers[next].uri);
            warn!(%server, error = %why, %next, "the API server does not serve; asking another");
        }
    }
}

#[cfg(test)]
mod tests;
