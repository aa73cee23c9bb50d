//! CPU lists as the kernel writes them: `0-3,8,10-11`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Largest CPU number accepted in a list. Kernels stop at `NR_CPUS` = 8192; the bound keeps a
/// nonsense range from filling memory.
const CPU_MAX: u32 = 65_535;

/// A set of CPU numbers in ascending order. Reads and shows the kernel's list format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<u32>);

impl CpuList {
    /// Whether the CPU is in the list.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// CPUs that are in both lists.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// CPUs that are in one of the lists.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// CPUs of this list that are not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = String;

    /// Parses `0-3,8`; empty text is an empty list.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first, text)?, number(last, text)?);
            if first > last {
                return Err(format!("`{part}` of CPU list `{text}` runs backwards"));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

fn number(digits: &str, text: &str) -> Result<u32, String> {
    match digits.trim().parse() {
        Ok(cpu) if cpu <= CPU_MAX => Ok(cpu),
        Ok(cpu) => Err(format!("CPU {cpu} of CPU list `{text}` is above {CPU_MAX}")),
        Err(_) => Err(format!("`{digits}` of CPU list `{text}` is no number")),
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::CpuList;

    #[test]
    fn lists_are_read_and_shown_as_the_kernel_does() {
        for (text, shown, count) in [
            ("0\n", "0", 1),
            ("0-3,8,10-11\n", "0-3,8,10-11", 7),
            ("3,1,2", "1-3", 3),
            ("\n", "", 0),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!((list.to_string().as_str(), list.len()), (shown, count));
            assert_eq!(shown.parse::<CpuList>().unwrap(), list);
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_text() {
        for text in ["a", "1-", "-", "3-1", "1,,2", "0-4294967295", "1:2/3"] {
            let why = text.parse::<CpuList>().unwrap_err();
            assert!(why.contains(text), "{why}");
        }
    }

    #[test]
    fn sets_meet_and_part() {
        let (all, some) = ("0-7".parse::<CpuList>().unwrap(), "2-3,9".parse().unwrap());
        assert_eq!(all.and(&some).to_string(), "2-3");
        assert_eq!(all.without(&some).to_string(), "0-1,4-7");
        assert!(all.contains(7) && !all.contains(8) && !all.is_empty());
    }
}
