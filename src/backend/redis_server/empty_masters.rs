//! Masters of a Cluster that serve no slot yet. They are met before they are given slots: a server that is met with
//! slots that others have served may have forgotten what was granted there.

/// A host and a port.
type Address = (String, u16);

/// The masters without slots in an answer to CLUSTER NODES, by the kind of name that clients are redirected to: their
/// host names where `is_served` knows one, else their addresses. A node that does not know its own has `host`.
pub fn empty_masters(nodes: &str, is_served: impl Fn(&str) -> bool, host: Option<&str>) -> Vec<Address> {
    let lines: Vec<Line<'_>> = nodes.lines().filter_map(Line::read).collect();
    let by_name = lines.iter().any(|line| line.name.is_some_and(&is_served));
    let address = |line: &Line<'_>| {
        let name = line.name.filter(|_| by_name).or(line.ip).or(host)?;
        Some((name.to_owned(), line.port))
    };
    lines
        .iter()
        .filter(|line| line.is_empty_master)
        .filter_map(address)
        .collect()
}

/// What is said of one node.
struct Line<'a> {
    ip: Option<&'a str>,
    port: u16,
    name: Option<&'a str>,
    is_empty_master: bool,
}

impl<'a> Line<'a> {
    /// `id ip:port@bus[,name[,more]] flags master ping pong epoch link slots…`
    fn read(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (address, more) = words.get(1)?.split_once('@')?;
        let (ip, port) = address.rsplit_once(':')?;
        let flags: Vec<&str> = words.get(2)?.split(',').collect();
        let away = ["fail", "fail?", "handshake", "noaddr"];
        // A slot on its way here is not served yet.
        let serves = words.iter().skip(8).any(|slots| !slots.starts_with('['));
        Some(Self {
            ip: Some(ip).filter(|ip| !ip.is_empty()),
            port: port.parse().ok()?,
            name: more.split(',').nth(1).filter(|name| !name.is_empty()),
            is_empty_master: flags.contains(&"master") && !flags.iter().any(|flag| away.contains(flag)) && !serves,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "a 10.0.0.1:1@11,one master - 0 0 2 connected 7-9\n\
                         b 10.0.0.2:2@12,two myself,master - 0 0 1 connected [100-<-a]\n\
                         c :3@13 master,fail - 0 0 1 connected\n\
                         d 10.0.0.4:4@14,four slave a 0 0 1 connected\n\
                         e :5@15 master - 0 0 1 connected\n";

    #[test]
    fn only_living_masters_without_slots_are_empty() {
        let found = |name: &str| (name.to_owned(), if name == "seed" { 5 } else { 2 });
        let by_ip = empty_masters(NODES, |host| host == "10.0.0.1", Some("seed"));
        assert_eq!(by_ip, [found("10.0.0.2"), found("seed")]);
        let by_name = empty_masters(NODES, |host| host == "one", None);
        assert_eq!(by_name, [found("two")]);
    }
}
