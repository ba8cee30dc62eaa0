use super::*;

fn read(clock: u64, zxid: u64, base: u64, last: u64) -> Read {
    Read {
        clock,
        zxid,
        base,
        base_version: 0,
        last,
        mint_version: 0,
    }
}

#[test]
fn the_base_is_raised_to_the_clock_and_lowered_as_far_as_the_last_grant_allows() {
    for (read, largest, wanted) in [
        (read(1000, 10, 0, 0), 0, (990, false)),
        (read(1000, 10, 990, 5), 0, (990, false)),
        // A clock that is behind changes nothing.
        (read(900, 10, 990, 999), 0, (990, false)),
        // An old copy was put back: the zxid has fallen.
        (read(1000, 3, 990, 995), 0, (997, false)),
        (read(1000, 3, 990, 995), 1500, (1498, false)),
        // Elections have added 100.
        (read(1001, 110, 990, 1005), 0, (896, true)),
        (read(1001, 110, 990, 1099), 0, (990, false)),
    ] {
        assert_eq!(
            wanted_base(&read, largest),
            wanted,
            "{} {} {}",
            read.clock,
            read.zxid,
            read.base
        );
    }
}
