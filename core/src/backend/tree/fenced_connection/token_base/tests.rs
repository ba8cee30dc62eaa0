use super::*;

fn read(number: u64, base: u64, last: u64) -> Read {
    Read {
        number,
        base,
        base_version: 0,
        last: Some((last, 7)),
    }
}

#[test]
fn the_base_is_raised_to_the_clock_and_lowered_as_far_as_the_last_grant_allows() {
    for (clock, read, largest, wanted) in [
        (1000, read(10, 0, 0), 0, (990, None)),
        (1000, read(10, 990, 5), 0, (990, None)),
        // A clock that is behind changes nothing.
        (900, read(10, 990, 999), 0, (990, None)),
        // An old copy was put back: the numbers have fallen.
        (1000, read(3, 990, 995), 0, (997, None)),
        (1000, read(3, 990, 995), 1500, (1498, None)),
        // Elections have added 100.
        (1001, read(110, 990, 1005), 0, (896, Some(7))),
        (1001, read(110, 990, 1099), 0, (990, None)),
        // A clock that was beyond the range has written the base, and a grant with it.
        (1001, read(110, 1 << 53, 0), 0, (891, Some(7))),
        (1001, read(110, 1 << 53, (1 << 53) + 9), 0, (891, Some(7))),
        (1001, read(110, 1 << 53, 2000), 0, (1891, Some(7))),
        (1001, read(110, u64::MAX, u64::MAX), 3000, (2891, Some(7))),
    ] {
        let (number, base) = (read.number, read.base);
        assert_eq!(
            wanted_base(&read, Some(clock), largest),
            wanted,
            "{clock} {number} {base}"
        );
    }
}

#[test]
fn a_clock_that_says_nothing_neither_raises_nor_lowers_the_base() {
    assert_eq!(wanted_base(&read(10, 990, 5), None, 0), (990, None));
    assert_eq!(wanted_base(&read(3, 990, 5), None, 1500), (1498, None));
}

#[test]
fn tokens_have_reached_the_largest_one_that_is_within_the_range() {
    for (read, largest, reached) in [
        (read(10, 990, 5), 0, 1000),
        (read(3, 990, 1005), 0, 1005),
        (read(10, 990, 5), 2000, 2000),
        (read(10, 1 << 53, (1 << 53) + 9), 0, 0),
    ] {
        assert_eq!(read.reached(largest), reached);
    }
}

#[test]
fn the_base_is_never_lowered_where_no_node_says_the_last_token() {
    let never = |number, base| Read {
        last: None,
        ..read(number, base, 0)
    };
    assert_eq!(wanted_base(&never(10, 900), Some(1000), 0), (990, None));
    assert_eq!(
        wanted_base(&never(110, 990), Some(1001), 0),
        (990, None),
        "it is ahead of the clock"
    );
    assert_eq!(
        wanted_base(&never(110, u64::MAX), Some(1001), 3000),
        (2891, None),
        "nobody has a token of it"
    );
}
