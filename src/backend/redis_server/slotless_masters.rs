//! Masters of a Cluster that serve no slot yet. They pass the handshake before they receive slots,
//! because a server that first appears with slots that others have served may have lost the grants
//! there.

/// A host and a port.
type Address = (String, u16);

/// The masters without slots in a reply to CLUSTER NODES, by the kind of name to which clients are
/// redirected: host names if `is_served` knows one of them, else addresses. A node that does not
/// know its own address gets `host`.
pub fn slotless_masters(nodes: &str, is_served: impl Fn(&str) -> bool, host: Option<&str>) -> Vec<Address> {
    let lines: Vec<NodeLine<'_>> = nodes.lines().filter_map(NodeLine::read).collect();
    let by_name = lines.iter().any(|line| line.name.is_some_and(&is_served));
    let address = |line: &NodeLine<'_>| {
        let name = line.name.filter(|_| by_name).or(line.ip).or(host)?;
        Some((name.to_owned(), line.port))
    };
    lines
        .iter()
        .filter(|line| line.is_slotless_master)
        .filter_map(address)
        .collect()
}

/// The fields of one node's line.
struct NodeLine<'a> {
    ip: Option<&'a str>,
    port: u16,
    name: Option<&'a str>,
    is_slotless_master: bool,
}

impl<'a> NodeLine<'a> {
    /// `id ip:port@bus[,name[,more]] flags master ping pong epoch link slots…`
    fn read(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, more) = fields.get(1)?.split_once('@')?;
        let (ip, port) = address.rsplit_once(':')?;
        let flags: Vec<&str> = fields.get(2)?.split(',').collect();
        let unusable = ["fail", "fail?", "handshake", "noaddr"];
        // A slot that is being imported is not served yet.
        let serves = fields.iter().skip(8).any(|slots| !slots.starts_with('['));
        Some(Self {
            ip: Some(ip).filter(|ip| !ip.is_empty()),
            port: port.parse().ok()?,
            name: more.split(',').nth(1).filter(|name| !name.is_empty()),
            is_slotless_master: flags.contains(&"master")
                && !flags.iter().any(|flag| unusable.contains(flag))
                && !serves,
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
    fn only_reachable_masters_without_slots_are_empty() {
        let found = |name: &str| (name.to_owned(), if name == "seed" { 5 } else { 2 });
        let by_ip = slotless_masters(NODES, |host| host == "10.0.0.1", Some("seed"));
        assert_eq!(by_ip, [found("10.0.0.2"), found("seed")]);
        let by_name = slotless_masters(NODES, |host| host == "one", None);
        assert_eq!(by_name, [found("two")]);
    }
}
