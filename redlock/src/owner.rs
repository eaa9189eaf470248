//! The owner of a key: an identity and the fencing token of the grant.

use std::fmt;
use std::str::FromStr;

use crate::fence::Token;

/// The value of a held key, `<identity>@<token>`. It differs at each grant and is compared whole, so that a late command
/// of an earlier grant of the same identity changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    identity: String,
    token: Token,
}

/// A value that is not `<identity>@<token>`: another library holds the key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an owner of the form <identity>@<token>")]
pub struct ForeignOwner;

impl Owner {
    /// The owner of a grant. Two contenders must not share an identity: with the same identity and the same token they
    /// would be one owner.
    #[must_use]
    pub fn new(identity: impl Into<String>, token: Token) -> Self {
        Self { identity: identity.into(), token }
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
        write!(f, "{}@{}", self.identity, self.token)
    }
}

impl FromStr for Owner {
    type Err = ForeignOwner;

    fn from_str(value: &str) -> Result<Self, ForeignOwner> {
        let (identity, token) = value.rsplit_once('@').ok_or(ForeignOwner)?;
        let token = token.parse().ok().and_then(Token::new).ok_or(ForeignOwner)?;
        // `+1` and `01` parse as numbers, but our owners are never written so.
        let owner = Self::new(identity, token);
        if !identity.is_empty() && owner.to_string() == value { Ok(owner) } else { Err(ForeignOwner) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_being_written_and_read() {
        let owner = Owner::new("job/a@b", Token::new(1_796_032_462_123_456).unwrap());
        assert_eq!(owner.to_string(), "job/a@b@1796032462123456");
        assert_eq!(owner.to_string().parse(), Ok(owner));
    }

    #[test]
    fn the_value_of_another_library_is_foreign() {
        for value in ["", "6f1c2a", "a@", "@5", "a@x", "a@+5", "a@05", "a@0", "a@9007199254740992"] {
            assert_eq!(value.parse::<Owner>(), Err(ForeignOwner), "{value:?}");
        }
    }
}
