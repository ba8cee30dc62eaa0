//! What a cluster asks for beside the locks themselves, all of it at once: mutual TLS, rules and limits for
//! each caller, metrics and traces, held to a server without any of it.

use std::fs;
use std::io::Write;
use std::path::Path;

use fencepost::api::proto::lock_service_client::LockServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, Server};
use tonic::{Request, Response, Status};

use crate::options::Plan;
use crate::pairs::{Slice, cpu_us, load, rate, rate_ratios};
use crate::process::Process;
use crate::report::{Bound, Compared, Report, Row};
use crate::{Failure, MEMORY, Subject, client};

/// The environment variable that makes this program a collector of traces.
const ROLE: &str = "FENCEPOST_BENCH_COLLECTOR";
/// What stands before the address in the line that says that it serves.
const READY: &str = "collecting on ";
/// Of how many calls a trace is kept, as production does it.
const SAMPLED: &str = "0.01";

/// The pairs of a plain server, of one with everything, and of one that traces every call, turn by turn.
pub async fn measure(plan: &Plan, folder: &Path, program: &Path, report: &mut Report) -> Result<(), Failure> {
    let collector = Process::role(ROLE, "yes", READY)?;
    let certificates = Certificates::write(folder)?;
    let plain = Process::configured(folder, program, "plain", &namespace())?;
    let plain = Subject::connect(plain, MEMORY).await?;
    let mut subjects = vec![plain];
    for (name, sampled) in [("cluster", SAMPLED), ("traced", "1.0")] {
        let config = config(folder, collector.address(), sampled) + &namespace();
        let process = Process::configured(folder, program, name, &config)?;
        subjects.push(certificates.connect(process).await?);
    }
    let mut slices = [vec![], vec![], vec![]];
    for subject in &subjects {
        load(subject, plan.slice).await?;
    }
    for round in 0..plan.rounds {
        for turn in 0..subjects.len() {
            // Each comes first as often as last, so that a drift of the machine favours none.
            let which = if round % 2 == 0 {
                turn
            } else {
                subjects.len() - 1 - turn
            };
            slices[which].push(load(&subjects[which], plan.slice).await?);
        }
    }
    let [plain, cluster, traced] = slices;
    let row = |what, slices: &[Slice]| Row::new(what, rate(slices), "pairs/s").cpu(cpu_us(slices));
    let ratio =
        |slices: &[Slice], least| Compared::new("of the plain one", rate_ratios(slices, &plain), Bound::AtLeast(least));
    report.add(row("plain, 64 callers", &plain));
    report.add(row("TLS, rules, metrics, 1 % traced", &cluster).compared(ratio(&cluster, 0.8)));
    // Shown, for whoever has traces on for a while: what it may cost is nobody's promise.
    report.add(row("the same, every call traced", &traced).compared(ratio(&traced, 0.0)));
    Ok(())
}

fn namespace() -> String {
    format!("[namespaces.{MEMORY}.embedded]\npath = \":memory:\"\n")
}

/// Everything that a cluster asks for; the caller is known by the third of some rules.
fn config(folder: &Path, collector: &str, sampled: &str) -> String {
    let folder = folder.display();
    let rule = |who: &str| {
        format!(
            "[[auth.rules]]\nidentities = [\"{who}\"]\nnamespaces = [\"{MEMORY}\"]\nverbs = [\"acquire\", \"read\"]\n"
        )
    };
    let rules = [rule("token:ci"), rule("uri:spiffe://example.org/*"), rule("cn:bench")].concat();
    format!(
        "metrics_listen = \"127.0.0.1:0\"\n[traces]\nendpoint = \"http://{collector}\"\nsample_ratio = {sampled}\n[tls]\n\
         certificate = \"{folder}/server.pem\"\nkey = \"{folder}/server.key\"\nclient_ca = \"{folder}/ca.pem\"\n\
         client_auth = \"required\"\nlisteners = \"all\"\n[auth]\n{rules}[[auth.limits]]\nidentities = [\"*\"]\n\
         rate_limit = 1000000\nlease_limit = 100000\n"
    )
}

/// What the client shows, and by what it knows the server.
struct Certificates {
    authority: String,
    own: (String, String),
}

impl Certificates {
    /// Makes an authority, and writes the files of the server.
    fn write(folder: &Path) -> Result<Self, Failure> {
        let mut params = CertificateParams::new([])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let signed = |name: &str, usage| -> Result<(String, String), Failure> {
            let mut params = CertificateParams::new([])?;
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            if usage == ExtendedKeyUsagePurpose::ServerAuth {
                params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
            }
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate()?;
            Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
        };
        let server = signed("a server", ExtendedKeyUsagePurpose::ServerAuth)?;
        for (name, text) in [
            ("server.pem", &server.0),
            ("server.key", &server.1),
            ("ca.pem", &authority),
        ] {
            fs::write(folder.join(name), text)?;
        }
        let own = signed("bench", ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(Self { authority, own })
    }

    async fn connect(&self, process: Process) -> Result<Subject, Failure> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authority))
            .identity(Identity::from_pem(&self.own.0, &self.own.1));
        let endpoint = client::endpoint("https", process.address())?.tls_config(tls)?;
        Ok(Subject {
            locks: LockServiceClient::new(endpoint.connect().await?),
            process,
            namespace: MEMORY,
        })
    }
}

/// The other end of the traces: it takes them and forgets them.
#[derive(Debug)]
struct Collector;

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        _: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Whether this process is to be a collector.
pub fn is_collector() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Collects until it is killed.
pub async fn collect() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{READY}{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let service = TraceServiceServer::new(Collector);
    let server = Server::builder().add_service(service);
    Ok(server.serve_with_incoming(TcpIncoming::from(listener)).await?)
}
