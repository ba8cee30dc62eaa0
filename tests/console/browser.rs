//! A real Chromium, driven by the WebDriver protocol.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{post, request};

/// Longer than any step of the page takes.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How often a driver is started until it has a port.
const STARTS: usize = 5;
const POLL: Duration = Duration::from_millis(50);
/// The key under which WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys, as WebDriver names them.
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";
pub const TAB: &str = "\u{e004}";
pub const DOWN: &str = "\u{e015}";

/// One browser for all tests, for its start takes longer than most of them; one test at a time has it, in a tab of its own.
static SHARED: Mutex<Option<Chromium>> = Mutex::new(None);

/// A browser and its driver, which end with the test binary.
struct Chromium {
    /// A shell that ends both when its input ends.
    driver: Child,
    address: String,
    session: String,
    _home: TempDir,
}

impl Drop for Chromium {
    fn drop(&mut self) {
        drop(self.driver.stdin.take());
        let _ = self.driver.wait();
    }
}

/// The browser with one new tab.
pub struct Browser {
    shared: MutexGuard<'static, Option<Chromium>>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The next test does not begin with what this one has left.
        if thread::panicking() {
            self.shared.take();
        }
    }
}

/// Whether a browser is there; at home its lack is no failure.
fn is_missing() -> bool {
    for program in ["chromedriver", "chromium"] {
        let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{program} is missing");
            println!("passed without a run: {program} is missing");
            return true;
        }
    }
    false
}

impl Browser {
    /// A new tab, unless there is no browser at home.
    pub fn open() -> Option<Self> {
        if is_missing() {
            return None;
        }
        let mut shared = SHARED.lock();
        let is_new = shared.is_none();
        shared.get_or_insert_with(Chromium::start);
        let browser = Self { shared };
        if !is_new {
            let tab = browser.must("window/new", &json!({ "type": "tab" }));
            let path = format!("/session/{}/window", browser.chromium().session);
            request(&browser.chromium().address, "DELETE", &path);
            browser.must("window", &json!({ "handle": tab["handle"] }));
            browser.devtools("Network.clearBrowserCookies", &json!({}));
            // What the last test has read of it no more.
            browser.errors();
        }
        Some(browser)
    }

    fn chromium(&self) -> &Chromium {
        self.shared.as_ref().expect("it is open")
    }

    fn command(&self, path: &str, body: &Value) -> Result<Value, Value> {
        let path = format!("/session/{}/{path}", self.chromium().session);
        let answer = post(&self.chromium().address, &path, &[], &body.to_string());
        let value = answer.json()["value"].take();
        if answer.status == 200 { Ok(value) } else { Err(value) }
    }

    #[track_caller]
    fn must(&self, path: &str, body: &Value) -> Value {
        self.command(path, body)
            .unwrap_or_else(|error| panic!("{path} {body}: {}", error["message"]))
    }

    /// Opens an address in a new document.
    pub fn go(&self, address: &str) {
        self.must("url", &json!({ "url": "about:blank" }));
        self.must("url", &json!({ "url": address }));
    }

    /// The value of a script's `return`.
    pub fn script(&self, script: &str) -> Value {
        self.must("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The first element that a CSS selector finds, as soon as there is one.
    fn element(&self, selector: &str) -> Value {
        self.until(selector, || {
            let found = self.command("element", &json!({ "using": "css selector", "value": selector }));
            found.ok().map(|found| found[ELEMENT].clone())
        })
    }

    /// Clicks an element as a person does: it must be shown, and nothing may cover it.
    pub fn click(&self, selector: &str) {
        self.until(&format!("a click on {selector}"), || {
            let element = self.element(selector);
            let path = format!("element/{}/click", element.as_str().expect("an id"));
            self.command(&path, &json!({})).ok()
        });
    }

    /// Types into an element.
    pub fn write(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        let path = format!("element/{}/value", element.as_str().expect("an id"));
        self.must(&path, &json!({ "text": text }));
    }

    /// Presses and releases a key, wherever the focus is.
    pub fn press(&self, key: &str) {
        let keys = ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key }));
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys }] });
        self.must("actions", &actions);
    }

    /// What an element shows; nothing where there is no such element.
    pub fn text(&self, selector: &str) -> String {
        let quoted = Value::from(selector);
        let text = self.script(&format!("return document.querySelector({quoted})?.innerText ?? ''"));
        text.as_str().expect("a text").to_owned()
    }

    /// How many elements a selector finds.
    pub fn count(&self, selector: &str) -> u64 {
        let quoted = Value::from(selector);
        let count = self.script(&format!("return document.querySelectorAll({quoted}).length"));
        count.as_u64().expect("a number")
    }

    /// Waits until an element shows this.
    #[track_caller]
    pub fn shows(&self, selector: &str, text: &str) {
        let began = Instant::now();
        while !self.text(selector).contains(text) {
            let shown = self.text("body");
            assert!(
                began.elapsed() < PATIENCE,
                "{selector} does not show {text:?}:\n{shown}"
            );
            thread::sleep(POLL);
        }
    }

    /// Waits until an answer is there.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            if began.elapsed() > PATIENCE {
                let shown = self.command(
                    "execute/sync",
                    &json!({ "script": "return document.body.innerText", "args": [] }),
                );
                panic!("{what}: not within {PATIENCE:?}:\n{shown:?}");
            }
            thread::sleep(POLL);
        }
    }

    /// The errors in the browser's console. Responses with an error status are told there too, and are no errors of the
    /// page.
    pub fn errors(&self) -> Vec<String> {
        let log = self.must("se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().expect("a log").iter();
        let texts = entries.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned());
        texts.filter(|text| !text.contains("Failed to load resource")).collect()
    }

    /// Makes the window so large, in CSS pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Prefers `light` or `dark` colours.
    pub fn prefer(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// A command of the browser's own protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.must("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// A picture of the window, as PNG.
    pub fn picture(&self) -> Vec<u8> {
        let path = format!("/session/{}/screenshot", self.chromium().session);
        let answer = request(&self.chromium().address, "GET", &path).json();
        STANDARD
            .decode(answer["value"].as_str().expect("a picture"))
            .expect("base64")
    }
}

impl Chromium {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let (driver, port) = start_driver(home.path());
        let address = format!("127.0.0.1:{port}");
        let options = json!({ "args": [
            "--headless=new",
            // Tests may run as root in a container, where Chromium's sandbox cannot.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--disable-background-networking",
            "--no-first-run",
            "--window-size=1280,900",
            format!("--user-data-dir={}", home.path().join("profile").display()),
        ] });
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = post(&address, "/session", &[], &capabilities.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        let session = answer.json()["value"]["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        Self {
            driver,
            address,
            session,
            _home: home,
        }
    }
}

/// Starts a driver, and returns it with its port. One that ends before it has a port is started again.
fn start_driver(home: &Path) -> (Child, u16) {
    let mut said = Vec::new();
    for _ in 0..STARTS {
        // The browser outlives its driver, so both end as one group: when this process drops the pipe, or ends.
        let mut driver = Command::new("sh")
            .args(["-c", "chromedriver --port=0 & exec >&-; read -r _; kill -KILL 0"])
            .process_group(0)
            .env("HOME", home)
            .env("TMPDIR", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        match port(&mut driver) {
            Ok(port) => return (driver, port),
            Err(lines) => {
                drop(driver.stdin.take());
                said.push((driver.wait(), lines));
            }
        }
    }
    panic!("chromedriver says no port: {said:?}");
}

/// The port that the driver chose, or what it said before it ended. What it says later is read by a thread.
fn port(driver: &mut Child) -> Result<u16, Vec<String>> {
    let mut lines = BufReader::new(driver.stdout.take().expect("a pipe"))
        .lines()
        .map_while(Result::ok);
    let mut said = Vec::new();
    for line in &mut lines {
        let port = line.split_once("started successfully on port ");
        if let Some(port) = port.and_then(|(_, port)| port.trim_end_matches('.').parse().ok()) {
            thread::spawn(move || lines.for_each(drop));
            return Ok(port);
        }
        said.push(line);
    }
    Err(said)
}
