//! One schedule: contenders during faults and after them, all drawn from a seed.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::contender::Contender;
use crate::faults;
use crate::history::{Counts, History};
use crate::pause::Task;
use crate::plan::{LONGEST_FREE, LONGEST_TTL, Plan};
use crate::process::Process;
use crate::random::Random;
use crate::rules::{Rule, Rules};
use crate::world::{Tally, World};

/// More simulated time than any schedule takes.
const ENDLESS: Duration = Duration::from_secs(600);

/// The result of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub counts: Counts,
    pub tally: Tally,
}

/// Runs the schedule of that seed; the error says which promise was broken.
pub fn run(seed: u64, rules: Rules, trace: bool) -> Result<Report, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(simulate(seed, rules, trace)).map_err(|violation| format!("seed {seed}: {violation}"))
}

async fn simulate(seed: u64, rules: Rules, trace: bool) -> Result<Report, String> {
    let mut random = Random::new(seed);
    let plan = Plan::draw(seed, rules, &mut random);
    let world = World::new(&plan, random, trace);
    world.note(|| format!("{plan:?}"));
    let history = Arc::new(History::new(world.clone(), &plan));
    let processes: Arc<[_]> = (0..plan.clients).map(|number| Process::new(world.clone(), number)).collect();
    let time = tokio::spawn(world.clone().run());
    let mut tasks = JoinSet::new();
    for process in 0..plan.clients {
        for number in 0..plan.contenders {
            let contender = Contender {
                world: world.clone(),
                history: Arc::clone(&history),
                processes: Arc::clone(&processes),
                process,
                identity: format!("p{process}c{number}"),
                locks: plan.locks,
            };
            tasks.spawn(Task::new(world.clone(), process, contender.contend()));
        }
    }
    tasks.spawn(faults::run(world.clone(), Arc::clone(&processes)));
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(())
    };
    timeout(ENDLESS, all).await.map_err(|_| "a contender waits without end".to_owned())??;
    // Leases that were dropped or abandoned last expire, also where a clock was set back. A long lease was released: in the
    // worst case its key came by a connection that had broken, and is found when the release is sent once more.
    sleep(if plan.long_leases { LONGEST_FREE } else { 3 * LONGEST_TTL }).await;
    time.abort();
    let counts = history.judge()?;
    let state = world.now();
    let now = Instant::now();
    // A minority keeps nobody from a lock: without the rule the locks that stay free are looked for.
    if rules.broken != Some(Rule::ReleasesAreKept)
        && let Some((key, owner)) = state.servers.iter().flat_map(|server| server.held(now)).next()
    {
        return Err(format!("{owner} still has {key} when all is over"));
    }
    Ok(Report { counts, tally: state.tally })
}
