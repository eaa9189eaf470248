//! Who has the turn, and when it is taken away.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;

use super::*;

const CALL: Duration = Duration::from_millis(50);

fn key() -> LockKey {
    LockKey::new("a", "b").unwrap()
}

fn seat(queues: &Arc<LocalQueues<u32>>, priority: i16) -> Seat<u32> {
    queues.seat(&key(), priority, CALL)
}

/// The turn, if it has come.
fn turn<'a>(turn: impl Future<Output = Turn<'a, u32>>) -> Option<Turn<'a, u32>> {
    turn.now_or_never()
}

#[tokio::test]
async fn the_turn_goes_by_priority_then_by_arrival_and_takes_along_what_was_learned() {
    let queues = Arc::<LocalQueues<u32>>::default();
    let seats: Vec<_> = [0, 0, 1, 0, 1].map(|priority| seat(&queues, priority)).into();
    let mut first = seats[0].turn(None).await;
    assert_eq!(first.session, 0);
    let [mut low, mut high, mut also_low, mut also_high] = [1, 2, 3, 4].map(|index| Box::pin(seats[index].turn(None)));
    for waiting in [&mut low, &mut high, &mut also_low, &mut also_high] {
        assert!(turn(waiting).is_none(), "another has the turn");
    }
    first.session = 7;
    drop(first);
    let second = turn(&mut high).expect("the turn");
    assert_eq!(second.session, 7);
    drop(second);
    for waiting in [&mut also_high, &mut low, &mut also_low] {
        drop(turn(waiting).expect("the next turn"));
    }
    drop((low, high, also_low, also_high));
    drop(seats);
    assert!(queues.lock().is_empty(), "nobody is left");
    assert_eq!(seat(&queues, 0).turn(None).await.session, 0);
}

#[tokio::test]
async fn a_contender_that_leaves_the_local_queue_stops_nobody() {
    let queues = Arc::<LocalQueues<u32>>::default();
    let seats: Vec<_> = [0; 4].map(|priority| seat(&queues, priority)).into();
    let first = seats[0].turn(None).await;
    let [mut gone, mut gone_with_the_turn, mut last] = [1, 2, 3].map(|index| Box::pin(seats[index].turn(None)));
    for waiting in [&mut gone, &mut gone_with_the_turn, &mut last] {
        assert!(turn(waiting).is_none());
    }
    drop(gone);
    drop(first);
    // It has the turn, and was not polled since.
    drop(gone_with_the_turn);
    drop(turn(&mut last).expect("the turn"));
    drop(last);
    drop(seats);
    assert!(queues.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_not_polled_loses_its_turn_and_goes_back_to_its_rank() {
    let queues = Arc::<LocalQueues<u32>>::default();
    let (idle, other, later) = (seat(&queues, 0), seat(&queues, 0), seat(&queues, 0));
    let head = idle.turn(None).await;
    let cleaned = Arc::new(AtomicBool::new(false));
    head.stint().clean_up_with({
        let cleaned = Arc::clone(&cleaned);
        move || cleaned.store(true, Ordering::SeqCst)
    });
    let began = Instant::now();
    let next = other.turn(None).await;
    assert_eq!(began.elapsed().as_millis(), 2000, "two pauses");
    assert!(cleaned.load(Ordering::SeqCst));
    // The one without the turn learns of it when it is polled, and passes on nothing.
    let stint = head.stint();
    assert_eq!(stint.run(std::future::ready(())).await, None);
    drop(head);
    let (mut again, mut last) = (Box::pin(idle.turn(None)), Box::pin(later.turn(None)));
    assert!(turn(&mut last).is_none() && turn(&mut again).is_none(), "there is one turn");
    drop(next);
    assert!(turn(&mut last).is_none(), "it came later");
    drop(turn(&mut again).expect("the turn"));
    drop(turn(&mut last).expect("the turn"));
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_polled_keeps_its_turn() {
    let queues = Arc::<LocalQueues<u32>>::default();
    let (busy, other) = (seat(&queues, 0), seat(&queues, 0));
    let head = busy.turn(Some(Instant::now() + LONGEST_PAUSE)).await;
    let stint = head.stint();
    let work = stint.run(async {
        for _ in 0..10 {
            tokio::time::sleep(CALL).await;
        }
    });
    let (worked, waited) = tokio::join!(work, tokio::time::timeout(10 * CALL, other.turn(None)));
    assert_eq!((worked, waited.is_err()), (Some(()), true));
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_with_the_deadline_although_nobody_polls_it() {
    let queues = Arc::<LocalQueues<u32>>::default();
    let (idle, over, other) = (seat(&queues, 0), seat(&queues, 0), seat(&queues, 0));
    let _head = idle.turn(Some(Instant::now() + Duration::from_millis(500))).await;
    // Nor does one get it whose time is over, before another.
    let mut unpolled = Box::pin(over.turn(Some(Instant::now() + Duration::from_millis(200))));
    assert!(turn(&mut unpolled).is_none());
    let began = Instant::now();
    let _turn = other.turn(None).await;
    assert_eq!(began.elapsed().as_millis(), 600, "and two call timeouts, for a call that is under way");
}

#[tokio::test]
async fn a_head_is_told_of_a_higher_priority_and_keeps_its_rank() {
    let queues = Arc::<LocalQueues<u32>>::default();
    let (low, also_low, high) = (seat(&queues, 0), seat(&queues, 0), seat(&queues, 1));
    let head = low.turn(None).await;
    assert!(!low.others_wait());
    let (mut same, mut higher) = (Box::pin(also_low.turn(None)), Box::pin(high.turn(None)));
    assert!(turn(&mut same).is_none() && low.others_wait());
    assert!(head.stint().displaced().now_or_never().is_none(), "the same priority waits");
    assert!(turn(&mut higher).is_none());
    assert!(head.stint().displaced().now_or_never().is_some());
    drop(head);
    let mut again = Box::pin(low.turn(None));
    assert!(turn(&mut again).is_none() && turn(&mut same).is_none());
    drop(turn(&mut higher).expect("the turn"));
    assert!(turn(&mut same).is_none(), "it came later");
    drop(turn(&mut again).expect("the turn"));
}
