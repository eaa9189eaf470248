//! The root key of a cluster, and the passwords that follow from it.
//!
//! Every password is derived from one key, so that the operator reads one Secret per cluster and never a client's.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest, Sha256};

/// Key of the root key within the Secret.
pub(crate) const ROOT_KEY: &str = "key";
/// Key of the servers' configuration within the Secret, and name of the mounted file.
pub(crate) const CONFIG_KEY: &str = "redis.conf";

/// The secret of a cluster, from which all its passwords follow: 32 random bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RootKey([u8; 32]);

/// A password. It is shown by [`Password::expose`] alone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(String);

/// A Secret without a usable root key.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("Secret {0} has no usable {ROOT_KEY}: 32 bytes in base64url are needed")]
pub(crate) struct UnusableKey(String);

// === impl RootKey ===

impl RootKey {
    /// A new key from the system's random source.
    #[must_use]
    pub(crate) fn generate() -> Self {
        Self(rand::random())
    }

    /// The key that a Secret carries.
    pub(crate) fn from_secret(secret: &Secret) -> Result<Self, UnusableKey> {
        let unusable = || UnusableKey(secret.metadata.name.clone().unwrap_or_default());
        let text = secret.data.as_ref().and_then(|data| data.get(ROOT_KEY)).ok_or_else(unusable)?;
        let bytes = URL_SAFE_NO_PAD.decode(text.0.trim_ascii()).map_err(|_| unusable())?;
        bytes.try_into().map(Self).map_err(|_| unusable())
    }

    /// The text that a Secret carries.
    #[must_use]
    pub(crate) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Password of the operator on every master.
    #[must_use]
    pub(crate) fn operator_password(&self) -> Password {
        self.derive("operator")
    }

    /// Password of the clients of the namespace with this uid on every master. `generation` is that of all clients' passwords,
    /// `namespace_generation` that of this namespace's. A namespace that is made again has another uid.
    #[must_use]
    pub(crate) fn client_password(&self, uid: &str, generation: i64, namespace_generation: i64) -> Password {
        self.derive(&format!("client/{uid}/{generation}/{namespace_generation}"))
    }

    /// Password of the operator as a client of every namespace. It never leaves the operator.
    #[must_use]
    pub(crate) fn own_client_password(&self) -> Password {
        self.derive("client/*")
    }

    fn derive(&self, purpose: &str) -> Password {
        #[expect(clippy::expect_used, reason = "the message proves it")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(purpose.as_bytes());
        Password(URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

// === impl Password ===

impl Password {
    /// The text itself: for a login, or a Secret.
    #[must_use]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Its SHA-256 in hexadecimal, which Redis takes instead of the password. A derived password has 256 random bits, so
    /// its digest gives nothing away.
    #[must_use]
    pub(crate) fn digest(&self) -> String {
        hexadecimal(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('?');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;

    use super::*;

    fn secret(key: &str) -> Secret {
        let data = BTreeMap::from([(ROOT_KEY.to_owned(), ByteString(key.as_bytes().to_vec()))]);
        Secret { data: Some(data), ..Secret::default() }
    }

    #[test]
    fn a_key_survives_its_secret() {
        let key = RootKey::generate();
        assert_eq!(RootKey::from_secret(&secret(&key.to_text())), Ok(key.clone()));
        assert_ne!(RootKey::generate(), key);
    }

    #[test]
    fn a_secret_without_32_bytes_is_refused() {
        for text in ["", "c2hvcnQ", "not base64 !", &URL_SAFE_NO_PAD.encode([7; 33])] {
            assert!(RootKey::from_secret(&secret(text)).is_err(), "{text:?}");
        }
        assert!(RootKey::from_secret(&Secret::default()).is_err());
    }

    #[test]
    fn passwords_are_the_documented_derivation() {
        // HMAC-SHA256 of a key of 32 zero bytes, computed with another implementation.
        let key = RootKey([0; 32]);
        assert_eq!(key.operator_password().expose(), OPERATOR_OF_ZERO_KEY);
        assert_eq!(key.client_password("0b6c1c9e", 2, 3).expose(), CLIENT_OF_ZERO_KEY);
    }
    const OPERATOR_OF_ZERO_KEY: &str = "BlLTAUOujYDO2fvkRiZve7_it9o3PBNY8ZfN6Bu9Nag";
    const CLIENT_OF_ZERO_KEY: &str = "n82QSO9ml4LaT692wa2Zad0pwT3DeSZ7VhGVLMIkGq8";

    #[test]
    fn each_namespace_and_each_generation_has_a_password_of_its_own() {
        let key = RootKey::generate();
        let password = key.client_password("a", 1, 1);
        for other in [key.client_password("b", 1, 1), key.client_password("a", 2, 1), key.client_password("a", 1, 2)] {
            assert_ne!(other, password);
        }
        assert_ne!(key.operator_password(), key.own_client_password());
    }

    #[test]
    fn nothing_secret_is_in_debug_output() {
        let key = RootKey::generate();
        assert_eq!(format!("{key:?} {:?}", key.operator_password()), "*** ***");
    }
}
