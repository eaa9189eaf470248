//! The owner of a key: an identity, the fencing token of the grant, and a nonce.

use std::fmt;
use std::str::FromStr;

use crate::fence::Token;

/// The value of a held key, `<identity>@<token>.<nonce>`. It differs at each grant and is compared whole, so that a late
/// command of an earlier grant of the same identity changes nothing.
///
/// The nonce, 16 hexadecimal digits, is drawn at random for each grant. It keeps two processes of the same identity apart
/// that propose the same token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    identity: String,
    token: Token,
    nonce: u64,
}

/// A value that is not `<identity>@<token>.<nonce>`: another library holds the key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an owner of the form <identity>@<token>.<nonce>")]
pub struct ForeignOwner;

impl Owner {
    /// The owner of a grant, with a `nonce` that was drawn for it.
    #[must_use]
    pub fn new(identity: impl Into<String>, token: Token, nonce: u64) -> Self {
        Self { identity: identity.into(), token, nonce }
    }

    /// The identity.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The fencing token of the grant.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}.{:016x}", self.identity, self.token, self.nonce)
    }
}

impl FromStr for Owner {
    type Err = ForeignOwner;

    fn from_str(value: &str) -> Result<Self, ForeignOwner> {
        let (identity, grant) = value.rsplit_once('@').ok_or(ForeignOwner)?;
        let (token, nonce) = grant.split_once('.').ok_or(ForeignOwner)?;
        let token = token.parse().ok().and_then(Token::new).ok_or(ForeignOwner)?;
        let nonce = u64::from_str_radix(nonce, 16).map_err(|_| ForeignOwner)?;
        // `+1`, `01` and `A` parse as numbers, but our owners are never written so.
        let owner = Self::new(identity, token, nonce);
        if !identity.is_empty() && owner.to_string() == value { Ok(owner) } else { Err(ForeignOwner) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_being_written_and_read() {
        let owner = Owner::new("job/a@b", Token::new(1_796_032_462_123_456).unwrap(), 0xab);
        assert_eq!(owner.to_string(), "job/a@b@1796032462123456.00000000000000ab");
        assert_eq!(owner.to_string().parse(), Ok(owner));
    }

    #[test]
    fn two_grants_of_one_identity_and_token_are_two_owners() {
        let owner = |nonce| Owner::new("twin", Token::new(7).unwrap(), nonce);
        assert_ne!(owner(1), owner(2));
        assert_ne!(owner(1).to_string(), owner(u64::MAX).to_string());
    }

    #[test]
    fn the_value_of_another_library_is_foreign() {
        let nonce = "0123456789abcdef";
        assert!(format!("a@5.{nonce}").parse::<Owner>().is_ok());
        for token in ["", "x", "+5", "05", "0", "9007199254740992", "5 ", "5."] {
            assert_eq!(format!("a@{token}.{nonce}").parse::<Owner>(), Err(ForeignOwner), "{token:?}");
        }
        for nonce in
            ["", "0123456789abcde", "0123456789ABCDEF", "+123456789abcdef", "00123456789abcdef", "0123456789abcdeg"]
        {
            assert_eq!(format!("a@5.{nonce}").parse::<Owner>(), Err(ForeignOwner), "{nonce:?}");
        }
        for value in ["", "6f1c2a", "a@", "a@5", "a.0123456789abcdef", "@5.0123456789abcdef"] {
            assert_eq!(value.parse::<Owner>(), Err(ForeignOwner), "{value:?}");
        }
    }
}
