//! ServiceCIDRs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    super::api::ServiceCidr as ApiServiceCidr, Convert, Ignored, Kind, Rejected, address, require_name,
};
use crate::model::{Change, ServiceCidr};

impl Convert for ApiServiceCidr {
    const KIND: Kind = Kind::ServiceCidr;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata.0
    }

    fn convert(&self, ignored: &mut Ignored) -> Result<Change, Rejected> {
        let texts = self.spec.cidrs.iter().enumerate();
        let ranges = texts.map(|(i, text)| address::parse_net(|| format!("spec.cidrs[{i}]"), text));
        let ranges = ignored.keep_all(ranges);
        Ok(Change::ServiceCidr(ServiceCidr { name: require_name(self.key())?.name, ranges }))
    }
}
