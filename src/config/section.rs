//! What a table of the configuration file is made of: one macro call gives its type, its defaults
//! and its documentation, so that none of them can go stale alone.

use std::collections::BTreeMap;

/// A table of the configuration file.
pub trait Section {
    /// What the table is about.
    fn about(&self) -> &'static str;
    /// Its keys in the order of their documentation.
    fn keys(&self) -> Vec<Key>;
    /// The tables in it, by their path below this one.
    fn tables(&self) -> Vec<(Vec<String>, &dyn Section)>;
}

/// One key of a table, ready to be shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// What it accepts, where its type has bounds.
    pub bounds: Option<String>,
    /// What it is when the file is silent; nothing where that depends on other things.
    pub default: Option<toml::Value>,
    /// What it is now.
    pub value: Option<toml::Value>,
}

/// A field that holds tables: one, one that may be absent, or several by name.
pub trait Tables {
    /// The tables in this field, by their path from the field's name on.
    fn below(&self, field: &str) -> Vec<(Vec<String>, &dyn Section)>;
}

impl<S: Section> Tables for S {
    fn below(&self, field: &str) -> Vec<(Vec<String>, &dyn Section)> {
        vec![(vec![field.to_owned()], self)]
    }
}

impl<S: Section> Tables for Option<S> {
    fn below(&self, field: &str) -> Vec<(Vec<String>, &dyn Section)> {
        self.iter().flat_map(|section| section.below(field)).collect()
    }
}

impl<S: Section> Tables for BTreeMap<String, S> {
    fn below(&self, field: &str) -> Vec<(Vec<String>, &dyn Section)> {
        self.iter()
            .map(|(name, section)| (vec![field.to_owned(), name.clone()], section as &dyn Section))
            .collect()
    }
}

/// A key's value as TOML; nothing for a value that is absent.
pub fn toml_value(value: &impl serde::Serialize) -> Option<toml::Value> {
    toml::Value::try_from(value).ok()
}

/// Declares a table: a struct whose every field is a documented key with its default, followed by
/// the tables in it. Unknown keys are refused; a missing key has its default.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $section:ident {
            $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr,)*
        }
        $(tables { $($(#[doc = $table_doc:literal])+ $table:ident: $table_type:ty,)+ })?
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $section {
            $($(#[doc = $doc])+ pub $key: $type,)*
            $($($(#[doc = $table_doc])+ pub $table: $table_type,)+)?
        }

        impl Default for $section {
            fn default() -> Self {
                Self {
                    $($key: $default,)*
                    $($($table: Default::default(),)+)?
                }
            }
        }

        impl $crate::config::section::Section for $section {
            fn about(&self) -> &'static str {
                concat!($($about, "\n"),+)
            }

            fn keys(&self) -> Vec<$crate::config::section::Key> {
                let default = Self::default();
                vec![$($crate::config::section::Key {
                    name: stringify!($key),
                    about: concat!($($doc, "\n"),+),
                    bounds: <$type as $crate::config::value::Bounded>::bounds(),
                    default: $crate::config::section::toml_value(&default.$key),
                    value: $crate::config::section::toml_value(&self.$key),
                },)*]
            }

            fn tables(&self) -> Vec<(Vec<String>, &dyn $crate::config::section::Section)> {
                let tables: Vec<Vec<(Vec<String>, &dyn $crate::config::section::Section)>> = vec![
                    $($($crate::config::section::Tables::below(&self.$table, stringify!($table)),)+)?
                ];
                tables.into_iter().flatten().collect()
            }
        }
    };
}

pub(crate) use section;
