//! The queue in front of a store: which requests go together, and which have to wait for another one.
//!
//! Pure and synchronous. A request *owns* each of its claim keys from the moment it is first in line for it
//! until its outcome is known; it is ready once it owns them all. Requests line up for all of their keys at
//! once, in order of arrival, so that no two can wait for each other.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::Limits;
use crate::domain::claim::ClaimKey;
use crate::store::accept::Request;

/// A queued request and `R`, the way to answer it.
#[derive(Debug)]
pub(super) struct Job<R> {
    pub request: Request,
    pub reply: R,
    pub claims: Vec<ClaimKey>,
    bytes: usize,
    /// How many of its keys other requests own.
    blocked: usize,
}

impl<R> Job<R> {
    pub fn new(request: Request, reply: R) -> Self {
        let mut claims: Vec<ClaimKey> = request
            .claim
            .iter()
            .map(|claim| claim.key)
            .chain(
                request.messages.iter().filter_map(|message| message.claim.as_ref().map(|claim| claim.key)),
            )
            .collect();
        // A key that a request names twice must not make it wait for itself.
        claims.sort_unstable();
        claims.dedup();
        let bytes = request.messages.iter().map(weight).sum();
        Self { request, reply, claims, bytes, blocked: 0 }
    }
}

/// About what a message costs on the wire to the store: every target's row has the body.
fn weight(message: &crate::store::accept::Message) -> usize {
    const ROW_BYTES: usize = 512;
    (message.message.body.len() + ROW_BYTES) * message.targets.len().max(1)
}

/// The request did not fit into the queue and is gone; none of its keys is owned.
#[derive(Debug)]
pub(super) struct Full;

/// What is queued, and who owns which key.
#[derive(Debug)]
pub(super) struct Queue<R> {
    limits: Limits,
    ready: VecDeque<Job<R>>,
    /// Requests that wait for keys, by number.
    parked: HashMap<u64, Job<R>>,
    next_number: u64,
    /// The keys that are owned, each with those who wait for it, first come first.
    owned: HashMap<ClaimKey, VecDeque<u64>>,
    queued_bytes: usize,
}

impl<R> Queue<R> {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ready: VecDeque::new(),
            parked: HashMap::new(),
            next_number: 0,
            owned: HashMap::new(),
            queued_bytes: 0,
        }
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.ready.len() + self.parked.len()
    }

    /// Whether a group can be formed now.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Lines a request up, unless the queue is full.
    pub fn push(&mut self, mut job: Job<R>) -> Result<(), Full> {
        let over_bytes = self.queued_bytes + job.bytes > self.limits.queued_bytes && self.len() > 0;
        if self.len() >= self.limits.queued_requests || over_bytes {
            return Err(Full);
        }
        let number = self.next_number;
        for key in &job.claims {
            match self.owned.entry(*key) {
                Entry::Vacant(free) => {
                    free.insert(VecDeque::new());
                }
                Entry::Occupied(mut taken) => {
                    taken.get_mut().push_back(number);
                    job.blocked += 1;
                }
            }
        }
        self.queued_bytes += job.bytes;
        if job.blocked == 0 {
            self.ready.push_back(job);
        } else {
            self.next_number += 1;
            self.parked.insert(number, job);
        }
        Ok(())
    }

    /// The next group: what is ready, in order, up to the limits; one that is over them by itself goes alone.
    pub fn next_group(&mut self) -> Vec<Job<R>> {
        let mut group = Vec::new();
        let (mut messages, mut bytes) = (0, 0);
        while let Some(job) = self.ready.front() {
            messages += job.request.messages.len();
            bytes += job.bytes;
            let over = messages > self.limits.group_messages || bytes > self.limits.group_bytes;
            if !group.is_empty() && (over || group.len() >= self.limits.group_requests) {
                break;
            }
            if let Some(job) = self.ready.pop_front() {
                self.queued_bytes -= job.bytes;
                group.push(job);
            }
        }
        group
    }

    /// Passes the keys of a request whose outcome is known to those who wait for them.
    pub fn release(&mut self, claims: &[ClaimKey]) {
        for key in claims {
            let Entry::Occupied(mut line) = self.owned.entry(*key) else { continue };
            let Some(number) = line.get_mut().pop_front() else {
                line.remove();
                continue;
            };
            let Entry::Occupied(mut heir) = self.parked.entry(number) else { continue };
            heir.get_mut().blocked -= 1;
            if heir.get().blocked == 0 {
                self.ready.push_back(heir.remove());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, work};
    use super::*;

    fn queue(limits: Limits) -> Queue<u32> {
        Queue::new(limits)
    }

    fn push(queue: &mut Queue<u32>, name: u32, keys: &[&str]) {
        queue.push(Job::new(request(keys), name)).unwrap();
    }

    fn names(group: &[Job<u32>]) -> Vec<u32> {
        group.iter().map(|job| job.reply).collect()
    }

    #[test]
    fn a_group_is_what_is_queued_up_to_the_limits() {
        let mut queue = queue(Limits { group_requests: 2, ..Limits::default() });
        for name in 1..=3 {
            push(&mut queue, name, &[]);
        }
        assert_eq!(names(&queue.next_group()), [1, 2]);
        assert_eq!(names(&queue.next_group()), [3]);
        assert!(queue.next_group().is_empty());
    }

    #[test]
    fn what_is_over_the_limits_by_itself_goes_alone() {
        let mut queue = queue(Limits { group_messages: 2, ..Limits::default() });
        push(&mut queue, 1, &["a"]);
        push(&mut queue, 2, &["b", "c", "d"]);
        push(&mut queue, 3, &["e"]);
        assert_eq!(names(&queue.next_group()), [1]);
        assert_eq!(names(&queue.next_group()), [2]);
        assert_eq!(names(&queue.next_group()), [3]);
    }

    #[test]
    fn a_group_is_bounded_in_bytes() {
        let mut queue = queue(Limits { group_bytes: 1_100, ..Limits::default() });
        for name in 1..=3 {
            push(&mut queue, name, &[]);
        }
        // Each message weighs 512 bytes and its body.
        assert_eq!(names(&queue.next_group()), [1, 2]);
        assert_eq!(names(&queue.next_group()), [3]);
    }

    #[test]
    fn a_key_is_owned_until_it_is_released_and_then_passed_on_in_order() {
        let mut queue = queue(Limits::default());
        push(&mut queue, 1, &["a"]);
        push(&mut queue, 2, &["a"]);
        push(&mut queue, 3, &["a", "b"]);
        push(&mut queue, 4, &["b"]);
        push(&mut queue, 5, &["c"]);
        assert_eq!(names(&queue.next_group()), [1, 5]);
        assert!(!queue.has_ready());
        queue.release(&[work("a")]);
        assert_eq!(names(&queue.next_group()), [2]);
        queue.release(&[work("c")]);
        assert!(!queue.has_ready());
        queue.release(&[work("a")]);
        assert_eq!(names(&queue.next_group()), [3]);
        queue.release(&[work("a"), work("b")]);
        assert_eq!(names(&queue.next_group()), [4]);
        queue.release(&[work("b")]);
        assert_eq!(queue.len(), 0);
        assert!(queue.owned.is_empty());
    }

    #[test]
    fn a_key_named_twice_by_one_request_does_not_make_it_wait_for_itself() {
        let mut queue = queue(Limits::default());
        push(&mut queue, 1, &["a", "a"]);
        assert_eq!(names(&queue.next_group()), [1]);
    }

    #[test]
    fn a_full_queue_refuses_the_request_and_owns_none_of_its_keys() {
        let mut queue = queue(Limits { queued_requests: 1, ..Limits::default() });
        push(&mut queue, 1, &[]);
        assert!(queue.push(Job::new(request(&["a"]), 2)).is_err());
        assert!(queue.owned.is_empty());
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_but_takes_one_request_of_any_size() {
        let mut queue = queue(Limits { queued_bytes: 10, ..Limits::default() });
        push(&mut queue, 1, &["a"]);
        assert!(queue.push(Job::new(request(&["b"]), 2)).is_err());
        assert_eq!(names(&queue.next_group()), [1]);
        push(&mut queue, 3, &["c"]);
    }
}
