//! ServiceCIDRs.

use k8s_openapi::{
    api::networking::v1::ServiceCIDR as ApiServiceCidr, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Convert, Ignored, Kind, Rejected, address, require_name};
use crate::model::{Change, ServiceCidr};

impl Convert for ApiServiceCidr {
    const KIND: Kind = Kind::ServiceCidr;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected> {
        let texts =
            self.spec.as_ref().and_then(|s| s.cidrs.as_deref()).unwrap_or_default().iter().enumerate();
        let ranges = texts.map(|(i, text)| address::parse_net(|| format!("spec.cidrs[{i}]"), text));
        let ranges = ignored.keep_all(ranges);
        Ok(Change::ServiceCidr(ServiceCidr { name: require_name(self.key())?.name, ranges }))
    }
}
