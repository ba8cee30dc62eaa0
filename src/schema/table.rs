//! A table of the configuration file: one macro call gives its type, its defaults and its documentation, so that
//! none of them can go stale alone.

use std::collections::BTreeMap;

/// A table of the configuration file.
pub trait Section {
    /// What the table is about.
    fn about(&self) -> &'static str;
    /// Its keys in the order of their documentation.
    fn keys(&self) -> Vec<Key>;
    /// The tables in it.
    fn tables(&self) -> Vec<Table<&dyn Section>>;
    /// The tables that could be in it and are not, as they would be by default.
    fn absent(&self) -> Vec<Table<Box<dyn Section>>>;
}

/// A table in another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Table<S> {
    /// Its path below the other one.
    pub path: Vec<String>,
    /// Whether there may be several under the same path, written `[[path]]`.
    pub is_one_of_many: bool,
    /// What is in it.
    pub section: S,
}

impl<S> Table<S> {
    /// The table at `field`.
    pub fn one(field: &str, section: S) -> Self {
        Self {
            path: vec![field.to_owned()],
            is_one_of_many: false,
            section,
        }
    }

    fn one_of_many(field: &str, section: S) -> Self {
        Self {
            is_one_of_many: true,
            ..Self::one(field, section)
        }
    }
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

/// A field that holds tables: one, one that may be absent, several in order, or several by name.
pub trait Tables {
    /// The tables in this field, by their path from the field's name on.
    fn below(&self, field: &str) -> Vec<Table<&dyn Section>>;

    /// The tables that the field may have and does not have.
    fn absent(&self, _field: &str) -> Vec<Table<Box<dyn Section>>> {
        Vec::new()
    }
}

impl<S: Section> Tables for S {
    fn below(&self, field: &str) -> Vec<Table<&dyn Section>> {
        vec![Table::one(field, self)]
    }
}

impl<S: Section + Default + 'static> Tables for Option<S> {
    fn below(&self, field: &str) -> Vec<Table<&dyn Section>> {
        self.iter().flat_map(|section| section.below(field)).collect()
    }

    fn absent(&self, field: &str) -> Vec<Table<Box<dyn Section>>> {
        let absent = self.is_none().then(|| Table::one(field, Box::new(S::default()) as _));
        absent.into_iter().collect()
    }
}

impl<S: Section + Default + 'static> Tables for Vec<S> {
    fn below(&self, field: &str) -> Vec<Table<&dyn Section>> {
        let all = self
            .iter()
            .map(|section| Table::one_of_many(field, section as &dyn Section));
        all.collect()
    }

    fn absent(&self, field: &str) -> Vec<Table<Box<dyn Section>>> {
        let absent = self
            .is_empty()
            .then(|| Table::one_of_many(field, Box::new(S::default()) as _));
        absent.into_iter().collect()
    }
}

impl<S: Section> Tables for BTreeMap<String, S> {
    fn below(&self, field: &str) -> Vec<Table<&dyn Section>> {
        let named = self.iter().map(|(name, section)| Table {
            path: vec![field.to_owned(), name.clone()],
            is_one_of_many: false,
            section: section as &dyn Section,
        });
        named.collect()
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
        $(tables { $($(#[doc = $table_doc:literal])+ $(#[serde($serde:ident)])? $table:ident: $table_type:ty,)+ })?
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $section {
            $($(#[doc = $doc])+ pub $key: $type,)*
            $($($(#[doc = $table_doc])+ $(#[serde($serde)])? pub $table: $table_type,)+)?
        }

        impl Default for $section {
            fn default() -> Self {
                Self {
                    $($key: $default,)*
                    $($($table: Default::default(),)+)?
                }
            }
        }

        impl $crate::schema::Section for $section {
            fn about(&self) -> &'static str {
                concat!($($about, "\n"),+)
            }

            fn keys(&self) -> Vec<$crate::schema::Key> {
                let default = Self::default();
                vec![$($crate::schema::Key {
                    name: stringify!($key),
                    about: concat!($($doc, "\n"),+),
                    bounds: <$type as $crate::schema::Bounded>::bounds(),
                    default: $crate::schema::toml_value(&default.$key),
                    value: $crate::schema::toml_value(&self.$key),
                },)*]
            }

            fn tables(&self) -> Vec<$crate::schema::Table<&dyn $crate::schema::Section>> {
                let tables: Vec<Vec<$crate::schema::Table<&dyn $crate::schema::Section>>> = vec![
                    $($($crate::schema::Tables::below(&self.$table, stringify!($table)),)+)?
                ];
                tables.into_iter().flatten().collect()
            }

            fn absent(&self) -> Vec<$crate::schema::Table<Box<dyn $crate::schema::Section>>> {
                let absent: Vec<Vec<$crate::schema::Table<Box<dyn $crate::schema::Section>>>> = vec![
                    $($($crate::schema::Tables::absent(&self.$table, stringify!($table)),)+)?
                ];
                absent.into_iter().flatten().collect()
            }
        }
    };
}

pub(crate) use section;
