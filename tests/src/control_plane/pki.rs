//! Keys, certificates and the token of a throw-away API server.

use std::{fs, path::Path};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// The administrator's bearer token. It is no secret: the API server is on the loopback of
/// a namespace and lives as long as the test.
pub(super) const TOKEN: &str = "test-token";

/// The bearer token of a user who may do nothing but what a role says.
pub(super) const READER_TOKEN: &str = "reader-token";

/// That user's name.
pub(super) const READER: &str = "reader";

/// Writes everything that kube-apiserver reads at its start.
pub(super) fn write(directory: &Path) -> Result<()> {
    let authority = CertifiedIssuer::self_signed(authority(), KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = server()?.signed_by(&key, &authority)?;
    let put = |name: &str, text: String| fs::write(directory.join(name), text);
    put("ca.crt", authority.pem())?;
    put("server.crt", certificate.pem())?;
    put("server.key", key.serialize_pem())?;
    let service_accounts = KeyPair::generate()?;
    put("service-account.key", service_accounts.serialize_pem())?;
    put("service-account.pub", service_accounts.public_key_pem())?;
    let tokens = format!("{TOKEN},admin,admin-uid,\"system:masters\"\n{READER_TOKEN},{READER},reader-uid\n");
    put("tokens.csv", tokens)?;
    Ok(())
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn server() -> Result<CertificateParams> {
    let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}
