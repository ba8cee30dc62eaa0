//! What an identity may do: rules that allow, and nothing that forbids. What no rule allows is denied.

use std::fmt;

use crate::name::Identity;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Takes a lock, renews its lease, gives it back.
    Acquire,
    /// Looks at locks.
    Read,
    /// Takes locks away from others, and ends quarantines.
    Admin,
}

impl Verb {
    /// The word for it in rules and errors.
    pub fn word(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }

    /// The verb of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Acquire, Self::Read, Self::Admin]
            .into_iter()
            .find(|verb| verb.word() == word)
    }
}

/// A text, or all texts that begin with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// Whether more may follow.
    open: bool,
}

/// A text that is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must not be empty, and may have a \"*\" at its end alone")]
pub struct BadPattern;

impl Pattern {
    /// Reads a pattern: a `*` may stand at its end.
    ///
    /// # Errors
    /// [`BadPattern`] for an empty one, or a `*` elsewhere.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        let (text, open) = text.strip_suffix('*').map_or((text, false), |text| (text, true));
        if text.contains('*') || (text.is_empty() && !open) {
            return Err(BadPattern);
        }
        Ok(Self {
            text: text.to_owned(),
            open,
        })
    }

    /// Whether it is this text, or what this text begins with.
    pub fn matches(&self, text: &str) -> bool {
        if self.open {
            text.starts_with(&self.text)
        } else {
            text == self.text
        }
    }
}

/// What some identities may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Who.
    pub identities: Vec<Pattern>,
    /// In which namespaces.
    pub namespaces: Vec<Pattern>,
    /// To locks whose names begin with one of these; an empty text stands for all locks.
    pub locks: Vec<String>,
    /// What.
    pub verbs: Vec<Verb>,
}

impl Rule {
    fn is_for(&self, identity: &Identity, namespace: &str) -> bool {
        let any = |patterns: &[Pattern], text: &str| patterns.iter().any(|pattern| pattern.matches(text));
        any(&self.identities, identity.as_str()) && any(&self.namespaces, namespace)
    }

    fn reaches(&self, locks: Reach<'_>) -> bool {
        self.locks.iter().any(|prefix| match locks {
            Reach::Names(name) => name.starts_with(prefix),
            Reach::All => prefix.is_empty(),
        })
    }
}

/// Which locks a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach<'a> {
    /// The one of this name, or all whose names begin so.
    Names(&'a str),
    /// All of the namespace.
    All,
}

/// What kept a caller from what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// It may do nothing in the namespace.
    Namespace,
    /// It may do something else there.
    Verb,
    /// It may do that there to other locks.
    Lock,
}

impl Missing {
    /// The word for it in errors.
    pub fn word(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Verb => "verb",
            Self::Lock => "lock",
        }
    }
}

/// A call that no rule allows. It says nothing of what there is: only of what was asked, and of the
/// caller's own rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// Who asked.
    pub identity: Identity,
    /// What for; nothing for a look at what there is for the caller at all.
    pub verb: Option<Verb>,
    /// Where.
    pub namespace: Option<String>,
    /// What kept it.
    pub missing: Missing,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = self.identity.as_str();
        let (Some(verb), Some(namespace)) = (self.verb, &self.namespace) else {
            return write!(f, "no rule allows {who:?} anything in any namespace");
        };
        let verb = verb.word();
        match self.missing {
            Missing::Namespace => write!(f, "no rule allows {who:?} anything in namespace {namespace:?}"),
            Missing::Verb => write!(f, "no rule allows {who:?} the verb {verb} in namespace {namespace:?}"),
            Missing::Lock => write!(
                f,
                "what was asked for lies outside of the lock names for which {who:?} has the verb {verb} in namespace \
                 {namespace:?}"
            ),
        }
    }
}

/// All rules. One that allows is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    all: Vec<Rule>,
}

impl Rules {
    /// These rules.
    pub fn new(all: Vec<Rule>) -> Self {
        Self { all }
    }

    /// Whether an identity may do something to these locks of a namespace.
    ///
    /// # Errors
    /// [`Denied`], with the first thing that is missing: any rule for the namespace, the verb, the lock.
    pub fn check(&self, identity: &Identity, verb: Verb, namespace: &str, locks: Reach<'_>) -> Result<(), Denied> {
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
        let mut open = self.all.iter().filter(|rule| rule.is_for(identity, namespace));
        open.any(|rule| !rule.verbs.is_empty() && !rule.locks.is_empty())
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

    fn missing(rules: &Rules, who: &str, verb: Verb, namespace: &str, locks: Reach<'_>) -> Option<Missing> {
        let who = Identity::proven(who);
        rules
            .check(&who, verb, namespace, locks)
            .err()
            .map(|denied| denied.missing)
    }

    #[test]
    fn a_denial_names_the_first_thing_that_is_missing() {
        use Reach::{All, Names};
        let rules = Rules::new(vec![
            rule(&["token:ci"], &["jobs", "team-*"], &["a/", "b/"], &[Verb::Acquire]),
            rule(&["token:ops"], &["*"], &[""], &[Verb::Admin]),
        ]);
        for (who, verb, namespace, locks, expected) in [
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
                missing(&rules, who, verb, namespace, locks),
                expected,
                "{who} {verb:?} {namespace} {locks:?}"
            );
        }
    }

    #[test]
    fn a_pattern_has_its_star_at_the_end() {
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
            .prop_map(|(who, namespaces, locks, verbs)| rule(&who, &namespaces, &locks, &verbs))
    }

    fn any_question() -> impl Strategy<Value = (&'static str, Verb, &'static str, &'static str)> {
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
        fn more_rules_never_take_anything_away(
            rules in proptest::collection::vec(any_rule(), 0..5),
            more in any_rule(),
            (who, verb, namespace, name) in any_question(),
        ) {
            let fewer = Rules::new(rules.clone());
            let all = Rules::new(rules.into_iter().chain([more]).collect());
            let before = missing(&fewer, who, verb, namespace, Reach::Names(name));
            let after = missing(&all, who, verb, namespace, Reach::Names(name));
            prop_assert!(before.is_some() || after.is_none());
        }

        #[test]
        fn the_order_of_rules_does_not_matter(
            rules in proptest::collection::vec(any_rule(), 0..5),
            (who, verb, namespace, name) in any_question(),
        ) {
            let turned = Rules::new(rules.iter().rev().cloned().collect());
            let rules = Rules::new(rules);
            prop_assert_eq!(
                missing(&rules, who, verb, namespace, Reach::Names(name)),
                missing(&turned, who, verb, namespace, Reach::Names(name))
            );
        }

        #[test]
        fn what_is_allowed_is_allowed_by_one_rule_alone(
            rules in proptest::collection::vec(any_rule(), 0..5),
            (who, verb, namespace, name) in any_question(),
        ) {
            let alone = rules.iter().any(|rule| {
                let only = Rules::new(vec![rule.clone()]);
                missing(&only, who, verb, namespace, Reach::Names(name)).is_none()
            });
            let rules = Rules::new(rules);
            prop_assert_eq!(missing(&rules, who, verb, namespace, Reach::Names(name)).is_none(), alone);
            if alone {
                prop_assert!(rules.opens(&Identity::proven(who), namespace));
            }
        }

        #[test]
        fn who_may_touch_all_locks_may_touch_each(
            rules in proptest::collection::vec(any_rule(), 0..5),
            (who, verb, namespace, name) in any_question(),
        ) {
            let rules = Rules::new(rules);
            if missing(&rules, who, verb, namespace, Reach::All).is_none() {
                prop_assert_eq!(missing(&rules, who, verb, namespace, Reach::Names(name)), None);
            }
        }
    }
}
