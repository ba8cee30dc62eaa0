//! Authorization rules. A rule only allows; whatever no rule allows is denied.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::Identity;

/// The kind of action that a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Acquire a lock, renew its lease, release it.
    Acquire,
    /// Read locks and their queues.
    Read,
    /// Force-release leases of others, and end quarantines.
    Admin,
}

impl Verb {
    /// The name of the verb in rules and errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

/// Matches one text, or all texts with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// Whether it is a prefix.
    is_prefix: bool,
}

/// A text that is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must not be empty, and may have a \"*\" at its end alone")]
pub struct BadPattern;

impl Pattern {
    /// Parses a pattern; a trailing `*` makes it a prefix.
    ///
    /// # Errors
    /// [`BadPattern`] for an empty text, or a `*` elsewhere.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        let (text, is_prefix) = text.strip_suffix('*').map_or((text, false), |text| (text, true));
        if text.contains('*') || (text.is_empty() && !is_prefix) {
            return Err(BadPattern);
        }
        Ok(Self {
            text: text.to_owned(),
            is_prefix,
        })
    }

    /// Whether the pattern matches the text.
    pub fn matches(&self, text: &str) -> bool {
        if self.is_prefix {
            text.starts_with(&self.text)
        } else {
            text == self.text
        }
    }
}

/// A set of actions that a set of identities may perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The identities.
    pub identities: Vec<Pattern>,
    /// The namespaces.
    pub namespaces: Vec<Pattern>,
    /// Prefixes of the lock names; the empty prefix stands for all locks.
    pub locks: Vec<String>,
    /// The verbs.
    pub verbs: Vec<Verb>,
}

impl Rule {
    fn is_for(&self, identity: &Identity, namespace: &str) -> bool {
        let any = |patterns: &[Pattern], text: &str| patterns.iter().any(|pattern| pattern.matches(text));
        any(&self.identities, identity.as_str()) && any(&self.namespaces, namespace)
    }

    fn reaches(&self, locks: LockScope<'_>) -> bool {
        self.locks.iter().any(|prefix| match locks {
            LockScope::Names(name) => name.starts_with(prefix),
            LockScope::All => prefix.is_empty(),
        })
    }
}

/// The locks that a call concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockScope<'a> {
    /// The lock of this name, or all locks with this prefix.
    Names(&'a str),
    /// All locks of the namespace.
    All,
}

/// What the caller lacks for the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Any rule for the namespace.
    Namespace,
    /// A rule with the verb, although other rules cover the namespace.
    Verb,
    /// A rule for the lock, although the verb is allowed for other locks of the namespace.
    Lock,
}

impl Missing {
    /// The name of the missing part in errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Verb => "verb",
            Self::Lock => "lock",
        }
    }
}

/// A call that no rule allows. It contains only the request and the caller's own rules, not whether the namespace or
/// lock exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The caller.
    pub identity: Identity,
    /// The verb; none for a request for everything that is visible to the caller.
    pub verb: Option<Verb>,
    /// The namespace.
    pub namespace: Option<String>,
    /// What the caller lacks.
    pub missing: Missing,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = self.identity.as_str();
        let (Some(verb), Some(namespace)) = (self.verb, &self.namespace) else {
            return write!(f, "no rule allows {identity:?} anything in any namespace");
        };
        let verb = verb.as_str();
        match self.missing {
            Missing::Namespace => write!(f, "no rule allows {identity:?} anything in namespace {namespace:?}"),
            Missing::Verb => write!(
                f,
                "no rule allows {identity:?} the verb {verb} in namespace {namespace:?}"
            ),
            Missing::Lock => write!(
                f,
                "the lock is outside the lock names for which {identity:?} has the verb {verb} in namespace \
                 {namespace:?}"
            ),
        }
    }
}

/// All rules. One matching rule is sufficient.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    all: Vec<Rule>,
}

impl Rules {
    /// A set of rules.
    pub fn new(all: Vec<Rule>) -> Self {
        Self { all }
    }

    /// Whether an identity may do something to these locks of a namespace.
    ///
    /// # Errors
    /// [`Denied`] with the first part that is missing: a rule for the namespace, for the verb, or for the lock.
    pub fn check(&self, identity: &Identity, verb: Verb, namespace: &str, locks: LockScope<'_>) -> Result<(), Denied> {
        let mut missing = Missing::Namespace;
        for rule in self.all.iter().filter(|rule| rule.is_for(identity, namespace)) {
            if !rule.verbs.contains(&verb) {
                if missing == Missing::Namespace {
                    missing = Missing::Verb;
                }
            } else if rule.reaches(locks) {
                return Ok(());
            } else {
                missing = Missing::Lock;
            }
        }
        Err(Denied {
            identity: identity.clone(),
            verb: Some(verb),
            namespace: Some(namespace.to_owned()),
            missing,
        })
    }

    /// Whether an identity may do anything at all in a namespace.
    pub fn opens(&self, identity: &Identity, namespace: &str) -> bool {
        let mut matching = self.all.iter().filter(|rule| rule.is_for(identity, namespace));
        matching.any(|rule| !rule.verbs.is_empty() && !rule.locks.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::new(text).unwrap()).collect()
    }

    fn rule(identities: &[&str], namespaces: &[&str], locks: &[&str], verbs: &[Verb]) -> Rule {
        Rule {
            identities: patterns(identities),
            namespaces: patterns(namespaces),
            locks: locks.iter().map(ToString::to_string).collect(),
            verbs: verbs.to_vec(),
        }
    }

    fn missing(rules: &Rules, identity: &str, verb: Verb, namespace: &str, locks: LockScope<'_>) -> Option<Missing> {
        let identity = Identity::authenticated(identity);
        rules
            .check(&identity, verb, namespace, locks)
            .err()
            .map(|denied| denied.missing)
    }

    #[test]
    fn a_rule_without_verbs_or_locks_opens_nothing() {
        let identity = Identity::authenticated("token:ci");
        let opens = |locks: &[&str], verbs: &[Verb]| {
            Rules::new(vec![rule(&["*"], &["jobs"], locks, verbs)]).opens(&identity, "jobs")
        };
        assert!(opens(&[""], &[Verb::Read]));
        assert!(!opens(&[], &[Verb::Read]) && !opens(&[""], &[]));
    }

    #[test]
    fn a_denial_names_the_first_missing_part() {
        use LockScope::{All, Names};
        let rules = Rules::new(vec![
            rule(&["token:ci"], &["jobs", "team-*"], &["a/", "b/"], &[Verb::Acquire]),
            rule(&["token:ops"], &["*"], &[""], &[Verb::Admin]),
        ]);
        for (identity, verb, namespace, locks, expected) in [
            ("token:ci", Verb::Acquire, "jobs", Names("a/1"), None),
            ("token:ci", Verb::Acquire, "team-x", Names("b/"), None),
            ("token:ci", Verb::Acquire, "jobs", Names("a"), Some(Missing::Lock)),
            ("token:ci", Verb::Acquire, "jobs", Names("ca/"), Some(Missing::Lock)),
            ("token:ci", Verb::Read, "jobs", Names("a/1"), Some(Missing::Verb)),
            ("token:ci", Verb::Acquire, "job", Names("a/1"), Some(Missing::Namespace)),
            ("token:c", Verb::Acquire, "jobs", Names("a/1"), Some(Missing::Namespace)),
            ("", Verb::Acquire, "jobs", Names("a/1"), Some(Missing::Namespace)),
            ("token:ops", Verb::Admin, "any", All, None),
            ("token:ci", Verb::Acquire, "jobs", All, Some(Missing::Lock)),
        ] {
            assert_eq!(
                missing(&rules, identity, verb, namespace, locks),
                expected,
                "{identity} {verb:?} {namespace} {locks:?}"
            );
        }
    }

    #[test]
    fn a_pattern_may_only_end_in_a_star() {
        for bad in ["", "a*b", "*a", "**", "a**"] {
            assert_eq!(Pattern::new(bad), Err(BadPattern), "{bad:?}");
        }
        let all = Pattern::new("*").unwrap();
        assert!(all.matches("") && all.matches("x"));
        let some = Pattern::new("a*").unwrap();
        assert!(some.matches("a") && some.matches("ab") && !some.matches("b") && !some.matches(""));
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let words = |words: &'static [&'static str]| proptest::collection::vec(proptest::sample::select(words), 0..3);
        let verbs = proptest::sample::subsequence(vec![Verb::Acquire, Verb::Read, Verb::Admin], 0..=3);
        (
            words(&["a", "ab", "b", "a*", "*"]),
            words(&["n", "nn", "m", "n*", "*"]),
            words(&["", "x", "xy", "y"]),
            verbs,
        )
            .prop_map(|(identity, namespaces, locks, verbs)| rule(&identity, &namespaces, &locks, &verbs))
    }

    fn any_request() -> impl Strategy<Value = (&'static str, Verb, &'static str, &'static str)> {
        let one = proptest::sample::select::<&'static str>;
        (
            one(vec!["a", "ab", "b", "c", ""]),
            proptest::sample::select(vec![Verb::Acquire, Verb::Read, Verb::Admin]),
            one(vec!["n", "nn", "m", "k"]),
            one(vec!["x", "xy", "xyz", "y", "z"]),
        )
    }

    proptest! {
        #[test]
        fn additional_rules_never_deny_anything(
            rules in proptest::collection::vec(any_rule(), 0..5),
            more in any_rule(),
            (identity, verb, namespace, name) in any_request(),
        ) {
            let fewer = Rules::new(rules.clone());
            let all = Rules::new(rules.into_iter().chain([more]).collect());
            let before = missing(&fewer, identity, verb, namespace, LockScope::Names(name));
            let after = missing(&all, identity, verb, namespace, LockScope::Names(name));
            prop_assert!(before.is_some() || after.is_none());
        }

        #[test]
        fn the_order_of_rules_does_not_matter(
            rules in proptest::collection::vec(any_rule(), 0..5),
            (identity, verb, namespace, name) in any_request(),
        ) {
            let reversed = Rules::new(rules.iter().rev().cloned().collect());
            let rules = Rules::new(rules);
            prop_assert_eq!(
                missing(&rules, identity, verb, namespace, LockScope::Names(name)),
                missing(&reversed, identity, verb, namespace, LockScope::Names(name))
            );
        }

        #[test]
        fn whatever_is_allowed_is_allowed_by_a_single_rule(
            rules in proptest::collection::vec(any_rule(), 0..5),
            (identity, verb, namespace, name) in any_request(),
        ) {
            let alone = rules.iter().any(|rule| {
                let only = Rules::new(vec![rule.clone()]);
                missing(&only, identity, verb, namespace, LockScope::Names(name)).is_none()
            });
            let rules = Rules::new(rules);
            prop_assert_eq!(missing(&rules, identity, verb, namespace, LockScope::Names(name)).is_none(), alone);
            if alone {
                prop_assert!(rules.opens(&Identity::authenticated(identity), namespace));
            }
        }

        #[test]
        fn access_to_all_locks_includes_each_lock(
            rules in proptest::collection::vec(any_rule(), 0..5),
            (identity, verb, namespace, name) in any_request(),
        ) {
            let rules = Rules::new(rules);
            if missing(&rules, identity, verb, namespace, LockScope::All).is_none() {
                prop_assert_eq!(missing(&rules, identity, verb, namespace, LockScope::Names(name)), None);
            }
        }
    }
}
