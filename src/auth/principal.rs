//! An authenticated caller and what its grants allow.

use super::Grant;
use crate::domain::routing::Pattern;

/// An authenticated caller (or the anonymous one).
#[derive(Clone, Debug)]
pub struct Principal {
    /// The API key's name, `sub` of a token, or `anonymous`.
    pub name: String,
    /// Empty: none.
    pub tenant: String,
    pub grants: Vec<Grant>,
    /// How the caller proved to be this one.
    pub via: Via,
}

/// How a caller proved who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Not at all.
    Nothing,
    /// An API key.
    Key,
    /// A token of the identity provider.
    Token,
}

impl Principal {
    /// Nobody in particular, who may do everything, without a tenant.
    pub fn anonymous() -> Self {
        let all = || Pattern::Any;
        let grants = vec![
            Grant::Publish { types: all(), destinations: None },
            Grant::Publish { types: all(), destinations: Some(all()) },
            Grant::Invoke(all()),
            Grant::Durability,
            Grant::Claim(all()),
            Grant::Operate,
        ];
        Self { name: "anonymous".into(), tenant: String::new(), grants, via: Via::Nothing }
    }

    /// Who this is, whatever names others have: an API key `shop` and a token's `sub` of the same name are two.
    /// Stable over the rotation of secrets.
    pub fn identity(&self) -> String {
        let via = match self.via {
            Via::Nothing => "nobody",
            Via::Key => "key",
            Via::Token => "token",
        };
        format!("{via}:{}", self.name)
    }

    fn has(&self, allows: impl Fn(&Grant) -> bool) -> bool {
        self.grants.iter().any(allows)
    }

    /// Messages of this type, by the routes.
    pub fn may_publish(&self, message_type: &str) -> bool {
        self.has(|grant| {
            matches!(grant, Grant::Publish { types, destinations: None } if types.matches(message_type))
        })
    }

    /// Messages of this type, naming this destination.
    pub fn may_publish_to(&self, message_type: &str, destination: &str) -> bool {
        self.has(|grant| {
            matches!(grant, Grant::Publish { types, destinations: Some(names) }
                if types.matches(message_type) && names.matches(destination))
        })
    }

    /// Messages of some type.
    pub fn publishes_anything(&self) -> bool {
        self.has(|grant| matches!(grant, Grant::Publish { .. }))
    }

    /// To run the handler of messages of this type.
    pub fn may_invoke(&self, message_type: &str) -> bool {
        self.has(|grant| matches!(grant, Grant::Invoke(types) if types.matches(message_type)))
    }

    /// To run some handler.
    pub fn invokes_anything(&self) -> bool {
        self.has(|grant| matches!(grant, Grant::Invoke(_)))
    }

    /// To run durability passes.
    pub fn may_pass(&self) -> bool {
        self.has(|grant| matches!(grant, Grant::Durability))
    }

    /// Messages, dead letters, targets, claims.
    pub fn may_read(&self) -> bool {
        self.has(|grant| matches!(grant, Grant::OperateRead | Grant::Operate))
    }

    /// To change them.
    pub fn may_write(&self) -> bool {
        self.has(|grant| matches!(grant, Grant::OperateWrite | Grant::Operate))
    }

    /// Claims of this scope.
    pub fn may_claim(&self, scope: &str) -> bool {
        self.has(|grant| matches!(grant, Grant::Claim(scopes) if scopes.matches(scope)))
    }

    /// Claims of some scope.
    pub fn claims_anything(&self) -> bool {
        self.has(|grant| matches!(grant, Grant::Claim(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(grants: &[&str]) -> Principal {
        let grants = grants.iter().map(|grant| grant.parse().unwrap()).collect();
        Principal { name: "shop".into(), tenant: String::new(), grants, via: Via::Key }
    }

    #[test]
    fn a_grant_allows_what_it_says_and_nothing_else() {
        let shop = with(&["publish:order.*", "publish:audit@log"]);
        assert!(shop.publishes_anything());
        assert!(shop.may_publish("order.created") && !shop.may_publish("invoice.created"));
        assert!(shop.may_publish_to("audit", "log") && !shop.may_publish_to("audit", "orders"));
        assert!(!shop.may_publish_to("order.created", "log"));
        assert!(!shop.may_publish("audit"), "only where it names the destination");
        assert!(!shop.may_read() && !shop.may_write() && !shop.claims_anything());
        assert!(with(&["operate:read"]).may_read() && !with(&["operate:read"]).may_write());
        assert!(with(&["operate"]).may_read() && with(&["operate"]).may_write());
        assert!(with(&["claim:mail.*"]).may_claim("mail.send") && !with(&["claim:mail.*"]).may_claim("sms"));
    }

    #[test]
    fn callers_of_one_name_are_not_one_caller() {
        let key = with(&[]);
        let token = Principal { via: Via::Token, ..key.clone() };
        assert_ne!(key.identity(), token.identity());
    }

    #[test]
    fn the_anonymous_principal_may_do_everything() {
        let nobody = Principal::anonymous();
        assert!(nobody.may_publish("x") && nobody.may_publish_to("x", "y"));
        assert!(nobody.may_read() && nobody.may_write() && nobody.may_claim("z"));
    }
}
