//! SIGKILL while many callers take several locks at once: the balances that the locks protect add up, and nothing stays.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dice::Dice;
use fencepost::api::proto::{AcquireAllRequest, LockToAcquire, ReleaseAllRequest};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Status;

use crate::asks::wire;
use crate::client::{Client, NAMESPACE};
use crate::history::{Held, History};
use crate::server::{Home, PATIENCE};

const CALLERS: u64 = 64;
const ACCOUNTS: u64 = 20;
/// How many locks a call takes at most.
const MOST: u64 = 4;
const KILLS: usize = if cfg!(feature = "soak") { 100 } else { 3 };
/// How many transfers there are before each kill, and after the last.
const TRANSFERS: u64 = if cfg!(feature = "soak") { 500 } else { 60 };
/// Short: what a killed server granted lives for this long.
const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(5);
/// How long a transfer takes at most.
const TAKES: Duration = Duration::from_millis(2);
const BALANCE: i64 = 1000;

/// An account, which refuses tokens below the highest that it has seen.
#[derive(Debug, Clone)]
struct Account {
    balance: i64,
    highest: u64,
}

/// What the locks protect, and what the callers saw.
#[derive(Debug)]
struct Bank {
    accounts: Mutex<Vec<Account>>,
    history: Mutex<History>,
    transfers: AtomicU64,
    is_over: AtomicBool,
}

fn name(account: usize) -> String {
    format!("account/{account:02}")
}

/// The accounts of a transfer, in a random order.
fn draw(dice: &mut Dice) -> Vec<usize> {
    let number = 2 + dice.below(MOST - 1) as usize;
    let mut drawn = Vec::new();
    while drawn.len() < number {
        let account = dice.below(ACCOUNTS) as usize;
        if !drawn.contains(&account) {
            drawn.push(account);
        }
    }
    drawn
}

async fn acquire_all(client: &Client, accounts: &[usize], owner: &str) -> Result<Vec<Held>, Status> {
    let locks = accounts.iter().map(|account| LockToAcquire {
        name: name(*account),
        mode: None,
    });
    let ask = AcquireAllRequest {
        namespace: NAMESPACE.into(),
        locks: locks.collect(),
        owner: owner.into(),
        ttl: Some(wire(TTL)),
        wait: Some(wire(WAIT)),
        ..AcquireAllRequest::default()
    };
    let sent = Instant::now();
    let leases = client.locks().acquire_all(ask).await?.into_inner().leases;
    Ok(leases.into_iter().map(|lease| Held::new(lease, sent)).collect())
}

impl Bank {
    /// The balances of the accounts; nothing for a caller that is not sure of all its leases.
    fn read(&self, accounts: &[usize], held: &[Held]) -> Option<Vec<i64>> {
        let mut all = self.accounts.lock().expect("no panic");
        self.check(&mut all, accounts, held)?;
        Some(accounts.iter().map(|account| all[*account].balance).collect())
    }

    /// Moves one from the first account to the second, of which these balances were read.
    fn write(&self, accounts: &[usize], held: &[Held], read: &[i64]) -> Option<()> {
        let mut all = self.accounts.lock().expect("no panic");
        self.check(&mut all, accounts, held)?;
        all[accounts[0]].balance = read[0] - 1;
        all[accounts[1]].balance = read[1] + 1;
        self.transfers.fetch_add(1, Ordering::SeqCst);
        Some(())
    }

    /// Shows the tokens to the accounts. A sure holder is never refused.
    fn check(&self, all: &mut [Account], accounts: &[usize], held: &[Held]) -> Option<()> {
        if !held.iter().all(Held::is_sure) {
            return None;
        }
        for (account, held) in accounts.iter().zip(held) {
            let (account, token) = (&mut all[*account], held.lease.fencing_token);
            assert!(
                account.highest <= token,
                "unsafe: a sure holder is refused: {account:?}, {held:?}"
            );
            account.highest = token;
        }
        Some(())
    }
}

/// Makes transfers until the bank is closed, at whatever server there is.
async fn make_transfers(server: watch::Receiver<Option<Client>>, caller: u64, bank: Arc<Bank>) {
    let (mut dice, owner) = (Dice::new(caller), format!("caller {caller}"));
    while !bank.is_over.load(Ordering::SeqCst) {
        let accounts = draw(&mut dice);
        let client = server.borrow().clone();
        let taken = match &client {
            Some(client) => acquire_all(client, &accounts, &owner).await.ok().zip(Some(client)),
            None => None,
        };
        let Some((mut held, client)) = taken else {
            tokio::time::sleep(dice.time(10 * TAKES)).await;
            continue;
        };
        if let Some(read) = bank.read(&accounts, &held) {
            tokio::time::sleep(dice.time(TAKES)).await;
            // A caller that was kept from running may have lost its locks.
            let _: Option<()> = bank.write(&accounts, &held, &read);
        }
        held.iter_mut().for_each(Held::gives_up);
        let lease_ids = held.iter().map(|held| held.lease.lease_id.clone()).collect();
        // A killed server answers nothing, and the leases expire.
        let _ = client.locks().release_all(ReleaseAllRequest { lease_ids }).await;
        let mut history = bank.history.lock().expect("no panic");
        held.into_iter().for_each(|held| history.note(held));
    }
}

// G53
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_amid_calls_for_several_locks_break_no_balance_and_leave_nothing() {
    let home = Home::with_file();
    let account = Account {
        balance: BALANCE,
        highest: 0,
    };
    let bank = Arc::new(Bank {
        accounts: Mutex::new(vec![account; ACCOUNTS as usize]),
        history: Mutex::default(),
        transfers: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut server = home.start().await;
    let (sender, receiver) = watch::channel(Some(server.client()));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(make_transfers(receiver.clone(), caller, Arc::clone(&bank)));
    }
    for kill in 0..=KILLS {
        let (goal, began) = (bank.transfers.load(Ordering::SeqCst) + TRANSFERS, Instant::now());
        while bank.transfers.load(Ordering::SeqCst) < goal {
            assert!(began.elapsed() < PATIENCE, "a deadlock? {:?}", bank.transfers);
            tokio::time::sleep(TAKES).await;
        }
        if kill < KILLS {
            sender.send_replace(None);
            server.kill();
            server = home.start().await;
            sender.send_replace(Some(server.client()));
        }
    }
    bank.is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.expect("no panic");
    }
    let accounts = bank.accounts.lock().expect("no panic").clone();
    let sum: i64 = accounts.iter().map(|account| account.balance).sum();
    assert_eq!(sum, BALANCE * ACCOUNTS as i64, "unsafe: {accounts:?}");
    let used = accounts.iter().filter(|account| account.highest > 0).count();
    let balances: BTreeSet<i64> = accounts.iter().map(|account| account.balance).collect();
    assert!(used == accounts.len() && balances.len() > 1, "{accounts:?}");
    bank.history.lock().expect("no panic").judge();
    println!("{} transfers, {KILLS} kills", bank.transfers.load(Ordering::SeqCst));
    for account in 0..ACCOUNTS as usize {
        let client = server.client();
        client
            .until(&name(account), |lock| (lock.holder_count, lock.waiter_count) == (0, 0))
            .await;
    }
}
