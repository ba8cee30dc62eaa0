//! What the chart hands to the program, and what it tells people, works with the real program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::helm::{KUBERNETES, chart, helm, objects, of_kind, render, root, shipped, shipped_objects, tool};

/// The configuration in rendered objects.
pub fn configuration(objects: &[Value]) -> String {
    let maps = of_kind(objects, "ConfigMap").filter_map(|map| map["data"]["fencepost.toml"].as_str());
    maps.map(str::to_owned).next().expect("the configuration")
}

/// A JSON Web Key Set.
const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// What the program says against a configuration.
pub fn check(config: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().to_str().expect("a path");
    // The files that a pod would have mounted.
    let config = config.replace("/etc/fencepost", home);
    let config = config.replace("/var/lib/fencepost", &format!("{home}/data"));
    let certificate = rcgen::generate_simple_self_signed(["x".to_owned()]).expect("a certificate");
    let names_a_file = |line: &&str| line.contains(home) && !line.starts_with("data_dir");
    for line in config.lines().filter(names_a_file) {
        let file = line.split('"').nth(1).expect("a path");
        fs::create_dir_all(std::path::Path::new(file).parent().expect("a folder")).expect("a folder");
        let is_key = file.ends_with(".key");
        let key = certificate.signing_key.serialize_pem();
        let text = match line.split(' ').next().expect("a key") {
            "bearer_file" => "# none\n".to_owned(),
            "jwks_file" => KEYS.to_owned(),
            _ if is_key => key,
            _ => certificate.cert.pem(),
        };
        fs::write(file, text).expect("a file");
    }
    let file = folder.path().join("fencepost.toml");
    fs::write(&file, config).expect("the file");
    let mut program = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    program.args(["config", "check", "--config"]).arg(&file).env_clear();
    program.env("HOME", home).env("REDIS_SENTINEL_PASSWORD", "x");
    let ran = program.output().expect("the program runs");
    if ran.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&ran.stderr).into_owned())
    }
}

#[test]
fn the_program_accepts_the_configuration_of_all_shipped_values() {
    let Some(program) = tool("helm") else { return };
    for values in shipped() {
        let config = configuration(&shipped_objects(&program, &values));
        check(&config).unwrap_or_else(|said| panic!("{values:?}: {said}\n{config}"));
    }
}

#[test]
fn certificates_rules_and_limits_arrive_in_the_configuration() {
    let Some(program) = tool("helm") else { return };
    let values = chart().join("examples/secure.yaml");
    let values = values.to_str().expect("a path");
    let rendered = |more: &[&str]| render(&program, &[&["--values", values], more].concat()).expect("rendered");
    let config = configuration(&objects(&rendered(&["--set", "tls.clientAuth=required"])));
    check(&config).expect(&config);
    for line in [
        "client_auth = \"required\"",
        "client_ca = \"/etc/fencepost/client-ca/ca.crt\"",
        "metrics_insecure = true",
        "audiences = [\"fencepost\"]",
        "verbs = [\"read\", \"admin\"]",
    ] {
        assert!(config.contains(line), "{line} in {config}");
    }
    let all = objects(&rendered(&["--set", "tls.metrics=true,serviceMonitor.enabled=true"]));
    let config = configuration(&all);
    check(&config).expect(&config);
    assert!(!config.contains("metrics_insecure"), "{config}");
    let pod = of_kind(&all, "Deployment").next().expect("the servers");
    let probe = pod.pointer("/spec/template/spec/containers/0/readinessProbe/httpGet/scheme");
    assert_eq!(probe, Some(&Value::from("HTTPS")));
    let monitor = of_kind(&all, "ServiceMonitor").next().expect("the monitor");
    assert_eq!(monitor.pointer("/spec/endpoints/0/scheme"), Some(&Value::from("https")));
}

#[test]
fn every_kind_of_value_arrives_in_the_configuration_as_it_was_given() {
    let Some(program) = tool("helm") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let values = folder.path().join("values.yaml");
    fs::write(
        &values,
        "config:\n  server: {request_bytes_limit: 65536}\n  traces: {endpoint: \"http://collector:4317\", sample_ratio: 0.25}\n  \
         ready_namespaces: [a.b]\n  namespaces:\n    a.b:\n      queue_limit: 1000000\n      embedded: {path: \"a \\\"quoted\\\" <name>\"}\n",
    )
    .expect("values");
    let config = configuration(&shipped_objects(&program, &values));
    check(&config).expect(&config);
    for line in [
        "request_bytes_limit = 65536",
        "sample_ratio = 0.25",
        "queue_limit = 1000000",
        "[namespaces.\"a.b\".embedded]",
        "insecure = true",
    ] {
        assert!(config.contains(line), "{line} in {config}");
    }
}

#[test]
fn servers_listen_at_the_address_that_a_cluster_has() {
    let Some(program) = tool("helm") else { return };
    for (address, listen) in [("0.0.0.0", "0.0.0.0"), ("::", "[::]")] {
        let set = format!("service.listenAddress={address}");
        let config = configuration(&objects(&render(&program, &["--set", &set]).expect(address)));
        check(&config).expect(&config);
        for line in [
            format!("listen = [\"{listen}:50051\"]\n"),
            format!("metrics_listen = \"{listen}:9464\"\n"),
        ] {
            assert!(config.contains(&line), "{config}");
        }
    }
}

#[test]
fn the_console_is_on_the_loopback_address_of_a_pod_or_nowhere() {
    let Some(program) = tool("helm") else { return };
    let rendered = |set: &[&str]| render(&program, set).map(|rendered| configuration(&objects(&rendered)));
    let without = rendered(&[]).expect("it renders");
    assert!(!without.contains("console_listen"), "{without}");
    let with = rendered(&["--set", "service.consolePort=50052"]).expect("it renders");
    assert!(with.contains("console_listen = \"127.0.0.1:50052\""), "{with}");
    check(&with).expect("the program accepts it");
    for (set, named) in [
        ("service.consolePort=50051", "service.consolePort"),
        ("service.consolePort=80", "/service/consolePort"),
        (
            "service.consolePort=50052,config.console_listen=x",
            "config.console_listen",
        ),
    ] {
        let said = rendered(&["--set", set]).expect_err(set);
        assert!(said.contains(named), "{set}: {said}");
    }
    assert!(notes(&program, &["--set", "service.consolePort=50052"]).contains("http://localhost:50052"));
}

#[test]
fn a_namespace_about_which_nothing_is_said_is_there() {
    let Some(program) = tool("helm") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let values = folder.path().join("values.yaml");
    fs::write(
        &values,
        "config:\n  namespaces:\n    silent:\n    other: {backend: etcd}\n",
    )
    .expect("values");
    let config = configuration(&shipped_objects(&program, &values));
    assert!(config.contains("[namespaces.silent]\n"), "{config}");
    check(&config).expect(&config);
}

#[test]
fn the_test_and_the_notes_take_a_lock_of_a_namespace_that_there_is() {
    let Some(program) = tool("helm") else { return };
    for (set, namespace, name) in [
        ("replicaCount=1", "default", "helm-test"),
        (
            "config.namespaces.b.backend=etcd,config.namespaces.a.backend=etcd",
            "a",
            "helm-test",
        ),
        ("config.namespaces.b.backend=etcd,test.lock=b/x/y", "b", "x/y"),
    ] {
        let objects = objects(&render(&program, &["--set", set]).expect(set));
        let pod = of_kind(&objects, "Pod").next().expect("the test");
        let lock = pod.pointer("/spec/containers/0/args/1");
        assert_eq!(lock, Some(&Value::from(format!("{namespace}/{name}"))), "{set}");
        let notes = notes(&program, &["--set", set]);
        let asked = format!("{{\"namespace\": \"{namespace}\", \"name\": \"{name}\", ");
        assert!(notes.contains(&asked), "{notes}");
        // Helm asks no cluster here.
        assert!(
            notes.contains("cannot notice that an upgrade moves a namespace"),
            "{notes}"
        );
    }
}

#[test]
fn what_the_program_does_not_know_is_refused_by_it() {
    let Some(program) = tool("helm") else { return };
    let rendered = render(&program, &["--set", "config.server.no_such_limit=1"]).expect("passed through");
    let said = check(&configuration(&objects(&rendered))).expect_err("refused");
    assert!(said.contains("no_such_limit"), "{said}");
}

/// A server; killed in the end.
pub struct Served(pub Child);

impl Drop for Served {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The notes of an installation. Helm shows them only where there is a cluster, so a copy of the chart has
/// them in an object.
fn notes(program: &Path, more: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let copied = Command::new("cp").arg("-r").arg(chart()).arg(folder.path()).status();
    assert!(copied.expect("cp runs").success());
    let templates = folder.path().join("fencepost/templates");
    let text = fs::read_to_string(templates.join("NOTES.txt")).expect("the notes");
    let object =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {notes: {{ include \"notes\" . | quote }}}\n";
    let wrapped = format!("{{{{- define \"notes\" -}}}}\n{text}\n{{{{- end -}}}}\n{object}");
    fs::write(templates.join("notes.yaml"), wrapped).expect("the object");
    let chart = folder.path().join("fencepost");
    let chart = chart.to_str().expect("a path");
    let show = ["--show-only", "templates/notes.yaml"];
    let arguments = ["template", "release", chart, "--kube-version", KUBERNETES];
    let ran = helm(program, &[&arguments[..], &show, more].concat());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let objects = objects(&String::from_utf8(ran.stdout).expect("text"));
    objects[0]["data"]["notes"].as_str().expect("the notes").to_owned()
}

#[test]
fn the_notes_say_how_the_first_start_on_an_empty_redis_ends() {
    let Some(program) = tool("helm") else { return };
    let example = chart().join("examples/redis.yaml");
    let example = ["--values", example.to_str().expect("a path")];
    let command = "exec deployment/release-fencepost -- /fencepost admit default --addr localhost:50051\n";
    assert!(notes(&program, &example).contains(command));
    let admitted = ["--set", "config.namespaces.default.redis.on_empty_store=admit"];
    assert!(!notes(&program, &[example, admitted].concat()).contains("fencepost admit"));
    assert!(!notes(&program, &[]).contains("fencepost admit"));
}

#[test]
fn the_notes_ask_for_a_token_where_the_server_does() {
    let Some(program) = tool("helm") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fencepost.toml");
    let listen = "listen = ['0.0.0.0:50051']\nmetrics_listen = '0.0.0.0:9464'\ninsecure = true\n";
    for (more, asks) in [("", false), ("[auth]\nbearer_file = '/b'\n", true)] {
        fs::write(&file, format!("{listen}{more}")).expect("a file");
        let notes = notes(&program, &["--set-file", &format!("config={}", file.display())]);
        assert_eq!(notes.contains("Bearer $TOKEN"), asks, "{notes}");
    }
}

#[test]
fn the_line_of_the_notes_takes_a_lock() {
    let (Some(program), Some(grpcurl)) = (tool("helm"), tool("grpcurl")) else {
        return;
    };
    let home = tempfile::tempdir().expect("a folder");
    takes_a_lock(&grpcurl, &notes(&program, &[]), home.path());

    // What the notes fetch from the secret, and a server with its certificate.
    let certificate = rcgen::generate_simple_self_signed(["release-fencepost".to_owned()]).expect("a certificate");
    let home = tempfile::tempdir().expect("another folder");
    let file = |name: &str, text: String| fs::write(home.path().join(name), text).expect("a file");
    file("fencepost-ca.crt", certificate.cert.pem());
    file("tls.key", certificate.signing_key.serialize_pem());
    let tls = "[tls]\ncertificate = 'fencepost-ca.crt'\nkey = 'tls.key'\nlisteners = 'tcp'\n";
    file("fencepost.toml", tls.to_owned());
    let encrypted = ["--set", "tls.enabled=true,tls.secretName=x"];
    takes_a_lock(&grpcurl, &notes(&program, &encrypted), home.path());
}

/// Runs the line of the notes against a server with the configuration in a folder, if there is one.
fn takes_a_lock(grpcurl: &Path, notes: &str, home: &Path) {
    let line = notes.lines().find(|line| line.contains("grpcurl ")).expect("a line");
    let mut server = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    server.args(["serve", "--listen", "127.0.0.1:0"]).env_clear();
    if home.join("fencepost.toml").exists() {
        server.args(["--config", "fencepost.toml"]);
    }
    server.env("HOME", home).current_dir(home).stderr(Stdio::piped());
    let mut server = Served(server.spawn().expect("the program starts"));
    let log = BufReader::new(server.0.stderr.take().expect("a pipe"));
    let mut lines = log.lines().map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.split_once("serving on ")?.1.to_owned()));
    let line = line.replace("localhost:50051", &address.expect("an address"));
    let line = line.replace("grpcurl ", &format!("{} ", grpcurl.display()));
    let ran = Command::new("bash").args(["-c", &line]).current_dir(home).output();
    let ran = ran.expect("bash runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        said.contains("\"fencingToken\""),
        "{line}: {said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn the_alerts_are_rules_that_prometheus_takes() {
    let Some(promtool) = tool("promtool") else { return };
    let Some(program) = tool("helm") else { return };
    let rendered = render(&program, &["--set", "prometheusRule.enabled=true,nameOverride=locks,prometheusRule.runbookUrl=https://runbooks.example/fencepost"]).expect("rendered");
    let objects = objects(&rendered);
    let rule = of_kind(&objects, "PrometheusRule").next().expect("the rules");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.json");
    // JSON is YAML.
    fs::write(&file, rule["spec"].to_string()).expect("the rules");
    let ran = Command::new(promtool)
        .args(["check", "rules"])
        .arg(&file)
        .output()
        .expect("promtool runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && said.contains("SUCCESS: 16 rules found"),
        "{said}"
    );
    let rules = rule["spec"]["groups"][0]["rules"].as_array().expect("the rules");
    let runbook = "https://runbooks.example/fencepost";
    for rule in rules {
        let alert = rule["alert"].as_str().expect("a name").to_lowercase();
        assert_eq!(rule["annotations"]["runbook_url"], format!("{runbook}#{alert}"));
    }
    for expression in ["up{job=\\\"locks\\\"} == 0", "absent(up{job=\\\"locks\\\"})"] {
        assert!(rule["spec"].to_string().contains(expression), "{rule}");
    }
}

#[test]
fn the_alerts_fire_when_they_should() {
    let Some(promtool) = tool("promtool") else { return };
    let tests = root().join("tests/chart/alerts.test.yaml");
    let ran = Command::new(promtool)
        .args(["test", "rules"])
        .arg(tests)
        .output()
        .expect("promtool runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("SUCCESS"), "{said}");
}

#[test]
fn each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let read = |file: &str| -> Value {
        let text = fs::read_to_string(root().join(file)).expect(file);
        serde_saphyr::from_str(&text).expect(file)
    };
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let rules = read("helm/fencepost/files/alerts.yaml");
    let cases = read("tests/chart/alerts.test.yaml");
    let tests = array(&cases["tests"]);
    let cases: Vec<Value> = tests.iter().flat_map(|test| array(&test["alert_rule_test"])).collect();
    let rules = array(&rules["groups"][0]["rules"]);
    assert!(rules.len() >= 14, "{rules:?}");
    for rule in &rules {
        let own: Vec<_> = cases.iter().filter(|case| case["alertname"] == rule["alert"]).collect();
        let fires = own.iter().filter(|case| !array(&case["exp_alerts"]).is_empty()).count();
        assert!(
            fires > 0 && fires < own.len(),
            "{}: {fires} of {}",
            rule["alert"],
            own.len()
        );
    }
}
