//! The macro that makes a struct of a table of counters.

/// How a counter becomes a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows, until a restart.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// The sum of counters that have reasons: the metric has a sample for each of these, and none
    /// for the sum.
    Sum,
    /// A counter of a sum, with its reason: the value of the metric's label `reason`.
    Part(&'static str),
}

/// A counter, as programs and people find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Key in `kvrail status --format json`.
    pub name: &'static str,
    /// Name of the metric, without the `_total` of counters. A metric in bytes or seconds ends in
    /// its unit.
    pub metric: &'static str,
    /// How it becomes a metric.
    pub kind: MetricKind,
    /// Its meaning.
    pub help: &'static str,
}

/// A number of a report, which may be missing.
pub trait Figure: Copy {
    /// The number, if it is there.
    fn get(self) -> Option<u64>;
}

impl Figure for u64 {
    fn get(self) -> Option<u64> {
        Some(self)
    }
}

impl Figure for Option<u64> {
    fn get(self) -> Option<u64> {
        self
    }
}

/// Makes a struct with a field for each counter, and the table of their definitions.
macro_rules! counters {
    (
        $(#[$about:meta])*
        $name:ident {
            $($field:ident: $kind:expr, $metric:literal, $help:literal;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
        pub struct $name<T> {
            $(#[doc = $help] pub $field: T,)*
        }

        impl $name<()> {
            /// All counters, in the order of the fields.
            pub const TABLE: [$crate::Definition; [$(stringify!($field)),*].len()] = {
                use $crate::MetricKind::*;
                [$($crate::Definition {
                    name: stringify!($field),
                    metric: $metric,
                    kind: $kind,
                    help: $help,
                }),*]
            };
        }

        impl<T> $name<T> {
            /// Each counter with its definition.
            pub fn each(&self) -> impl Iterator<Item = (&'static $crate::Definition, &T)> {
                $name::TABLE_REF.iter().zip([$(&self.$field),*])
            }

            /// The same counters, each made of this one.
            pub fn map<U>(&self, of: impl Fn(&T) -> U) -> $name<U> {
                $name { $($field: of(&self.$field)),* }
            }

            /// The same counters, each made of this one and the other's.
            pub fn with<U, V>(&self, other: &$name<U>, of: impl Fn(&T, &U) -> V) -> $name<V> {
                $name { $($field: of(&self.$field, &other.$field)),* }
            }
        }

        impl $name<()> {
            const TABLE_REF: &'static [$crate::Definition] = &Self::TABLE;
        }

        impl $name<Option<u64>> {
            /// Adds the counters that the other has.
            pub fn add(&mut self, other: &Self) {
                $(if let Some(more) = other.$field {
                    *self.$field.get_or_insert(0) += more;
                })*
            }
        }

        impl<T: $crate::Figure> serde::Serialize for $name<T> {
            /// A counter that is missing is left out.
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let there = |(it, value): (&'static $crate::Definition, &T)| {
                    Some((it.name, value.get()?))
                };
                serializer.collect_map(self.each().filter_map(there))
            }
        }
    };
}
