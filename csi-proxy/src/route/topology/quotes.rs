//! What a node has said of its capacity, kept so that nobody has to wait for it a second time.
//!
//! A provisioner asks for every node and class once a minute, one after the other. What was asked is asked again in the
//! background for as long as somebody wants to know it, and sidecars get what was said last.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::way::Answer;
use crate::outcome::Origin;

/// How long an answer is given to others. More than a provisioner's minute, so that it always finds one.
const FRESH: Duration = Duration::from_secs(90);

/// The same for a failure on the way: long enough that one node does not hold up the questions for all others.
const FRESH_FAILURE: Duration = Duration::from_secs(15);

/// When an answer is asked for again.
const REFRESH: Duration = Duration::from_secs(45);

/// How long a question is asked again after somebody has wanted to know it the last time.
const WANTED: Duration = Duration::from_secs(300);

/// Most questions that are kept of a node.
const MAX_QUOTES: usize = 32;

/// Longest question that is kept, with its answer, in bytes. Usually they have a few hundred.
const MAX_QUOTE: usize = 4 * 1024;

/// The answers of one node.
#[derive(Debug, Default)]
pub(super) struct Quotes(VecDeque<Quote>);

#[derive(Debug)]
struct Quote {
    question: Bytes,
    answer: Answer,
    since: Instant,
    wanted: Instant,
}

impl Quotes {
    /// What was said to this question, if that is not too old. It counts as wanted.
    pub(super) fn answer(&mut self, question: &Bytes, now: Instant) -> Option<Answer> {
        let quote = self.0.iter_mut().find(|quote| quote.question == *question)?;
        quote.wanted = now;
        let fresh = if matches!(quote.answer.1.origin, Origin::Driver) { FRESH } else { FRESH_FAILURE };
        (now.saturating_duration_since(quote.since) < fresh).then(|| quote.answer.clone())
    }

    /// Keeps what was said. `wanted`: somebody asked for it.
    pub(super) fn keep(&mut self, question: Bytes, answer: Answer, wanted: bool, now: Instant) {
        let size = question.len() + answer.0.as_ref().map_or(0, Bytes::len) + answer.1.message.len();
        if size > MAX_QUOTE {
            // What was said before is no longer so, and would be due for ever.
            return self.0.retain(|quote| quote.question != question);
        }
        match self.0.iter_mut().find(|quote| quote.question == question) {
            Some(quote) => {
                (quote.answer, quote.since) = (answer, now);
                quote.wanted = if wanted { now } else { quote.wanted };
            }
            None if wanted => {
                if self.0.len() >= MAX_QUOTES {
                    self.0.pop_front();
                }
                self.0.push_back(Quote { question, answer, since: now, wanted: now });
            }
            // It was forgotten while it was asked.
            None => {}
        }
    }

    /// When a question is to be asked again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(Quote::due).min()
    }

    /// The questions that are to be asked now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Bytes> {
        self.0.retain(|quote| now.saturating_duration_since(quote.wanted) < WANTED);
        let due = self.0.iter().filter(|quote| quote.due().is_some_and(|due| due <= now));
        due.map(|quote| quote.question.clone()).collect()
    }
}

impl Quote {
    /// `None` if nobody will want it by then.
    fn due(&self) -> Option<Instant> {
        let due = self.since + REFRESH;
        (due < self.wanted + WANTED).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::fault::Fault;
    use crate::outcome::Outcome;

    fn said() -> Answer {
        (Some(Bytes::from_static(b"7")), Outcome::ok())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_given_again_and_asked_again_for_as_long_as_somebody_wants_it() {
        let (mut quotes, question) = (Quotes::default(), Bytes::from_static(b"q"));
        assert_eq!(quotes.answer(&question, Instant::now()), None);
        quotes.keep(question.clone(), said(), true, Instant::now());
        let mut asked = 0;
        for minute in 0..20 {
            for _ in 0..4 {
                tokio::time::advance(Duration::from_secs(15)).await;
                for due in quotes.take_due(Instant::now()) {
                    asked += 1;
                    quotes.keep(due, said(), false, Instant::now());
                }
            }
            if minute < 10 {
                assert_eq!(quotes.answer(&question, Instant::now()), Some(said()), "minute {minute}");
            }
        }
        assert!((18..=22).contains(&asked), "{asked}: ten minutes wanted, five more, and then not");
        assert_eq!(quotes.due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_holds_others_up_once_in_a_while_and_no_more_questions_are_kept_than_allowed() {
        let (mut quotes, question) = (Quotes::default(), Bytes::from_static(b"q"));
        let failed = (None, Outcome::from(Fault::Deadline { waited: Duration::from_secs(5) }));
        quotes.keep(question.clone(), failed.clone(), true, Instant::now());
        assert_eq!(quotes.answer(&question, Instant::now()), Some(failed));
        tokio::time::advance(FRESH_FAILURE).await;
        assert_eq!(quotes.answer(&question, Instant::now()), None);
        for number in 0..200_u32 {
            quotes.keep(Bytes::copy_from_slice(&number.to_be_bytes()), said(), true, Instant::now());
        }
        assert_eq!(quotes.0.len(), MAX_QUOTES);
        quotes.keep(vec![0; MAX_QUOTE].into(), said(), true, Instant::now());
        assert_eq!(quotes.0.len(), MAX_QUOTES);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_has_become_too_long_to_keep_is_not_asked_for_again_and_again() {
        let (mut quotes, question) = (Quotes::default(), Bytes::from_static(b"q"));
        quotes.keep(question.clone(), said(), true, Instant::now());
        tokio::time::advance(REFRESH).await;
        assert_eq!(quotes.take_due(Instant::now()), std::slice::from_ref(&question));
        let failed = (None, Outcome::from_driver(Code::INTERNAL, "x".repeat(MAX_QUOTE)));
        quotes.keep(question.clone(), failed, false, Instant::now());
        assert_eq!((quotes.due(), quotes.answer(&question, Instant::now())), (None, None));
    }
}
