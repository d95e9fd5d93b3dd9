//! How a process and process 0 prove to each other that they know the secret, as bytes.
//!
//! ```text
//! process   -> process 0   hello      who comes, of which job, and a nonce
//! process 0 -> process     challenge  a nonce
//! process   -> process 0   proof      a tag over the hello and the challenge
//! process 0 -> process     answer     welcome, or why not; and a tag over all of that
//! ```
//!
//! Process 0 proves itself last: a stranger who calls at its port gets nothing to try secrets on. Tags bind who speaks,
//! so that none can be sent back; the process, the line, the job; and both nonces, so that none can be used again. The
//! keys of the connection follow from the same bytes.

use std::time::Duration;

use rankine_topology::Process;

use super::secret::Secret;

/// How long a process may take to prove who it is.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Names the protocol, with its version at the end.
const MAGIC: [u8; 8] = *b"rankine4";
const NONCE_BYTES: usize = 32;
const TAG_BYTES: usize = blake3::OUT_LEN;

pub(super) const HELLO_BYTES: usize = 24 + 2 * 16 + NONCE_BYTES;
pub(super) const CHALLENGE_BYTES: usize = 12 + NONCE_BYTES;
pub(super) const PROOF_BYTES: usize = TAG_BYTES;
pub(super) const ANSWER_BYTES: usize = 8 + TAG_BYTES;

/// What a connection is for. Each process has one of each with process 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Line {
    /// Values that are handed around.
    Values = 0,
    /// Signs of life, and what went wrong.
    Watch = 1,
}

impl Line {
    pub(super) const ALL: [Self; 2] = [Self::Values, Self::Watch];
}

/// What separates jobs: a digest of the job's id.
pub(super) type JobTag = [u8; 16];

/// The tag of a job's id, which is no secret.
pub(super) fn job_tag(job: Option<&str>) -> JobTag {
    let hash = blake3::derive_key("Rankine 2026: id of a job", job.unwrap_or_default().as_bytes());
    std::array::from_fn(|at| hash[at])
}

/// Who comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) process: Process,
    /// All processes of the job.
    pub(super) processes: usize,
    pub(super) line: Line,
    /// Whether the process has a secret.
    pub(super) secret: bool,
    pub(super) job: JobTag,
    /// Random; tells a process from another one that comes with the same number.
    pub(super) instance: [u8; 16],
    pub(super) nonce: [u8; NONCE_BYTES],
}

impl Hello {
    pub(super) fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let numbers =
            [self.process.0 as u32, self.processes as u32, self.line as u32, u32::from(self.secret)];
        for (at, number) in numbers.into_iter().enumerate() {
            bytes[8 + 4 * at..12 + 4 * at].copy_from_slice(&number.to_le_bytes());
        }
        bytes[24..40].copy_from_slice(&self.job);
        bytes[40..56].copy_from_slice(&self.instance);
        bytes[56..].copy_from_slice(&self.nonce);
        bytes
    }

    /// None where the bytes are no hello of this version.
    pub(super) fn read(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let secret = match number(bytes, 20) {
            0 => false,
            1 => true,
            _ => return None,
        };
        let line = *Line::ALL.get(number(bytes, 16) as usize)?;
        bytes.starts_with(&MAGIC).then(|| Self {
            process: Process(number(bytes, 8) as usize),
            processes: number(bytes, 12) as usize,
            line,
            secret,
            job: piece(bytes, 24),
            instance: piece(bytes, 40),
            nonce: piece(bytes, 56),
        })
    }
}

/// Process 0's challenge. It has other first bytes than a hello: nobody can mistake his own words for process 0's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Challenge {
    /// Whether process 0 has a secret.
    pub(super) secret: bool,
    pub(super) nonce: [u8; NONCE_BYTES],
}

const CHALLENGE_MAGIC: [u8; 8] = *b"4eniknar";

impl Challenge {
    pub(super) fn to_bytes(self) -> [u8; CHALLENGE_BYTES] {
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..8].copy_from_slice(&CHALLENGE_MAGIC);
        bytes[8..12].copy_from_slice(&u32::from(self.secret).to_le_bytes());
        bytes[12..].copy_from_slice(&self.nonce);
        bytes
    }

    /// None where the bytes are no challenge of this version.
    pub(super) fn read(bytes: &[u8; CHALLENGE_BYTES]) -> Option<Self> {
        let secret = number(bytes, 8);
        (bytes.starts_with(&CHALLENGE_MAGIC) && secret < 2)
            .then(|| Self { secret: secret == 1, nonce: piece(bytes, 12) })
    }
}

/// Why process 0 does not let a process in, or that it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Welcome,
    /// The proof is wrong.
    WrongSecret,
    OtherJob,
    /// Process 0 expects that many.
    OtherCount(u32),
    /// Another process has this number, or the job has no such process.
    NumberTaken,
}

impl Answer {
    fn to_words(self) -> [u32; 2] {
        match self {
            Self::Welcome => [0, 0],
            Self::WrongSecret => [1, 0],
            Self::OtherJob => [2, 0],
            Self::OtherCount(processes) => [3, processes],
            Self::NumberTaken => [4, 0],
        }
    }

    fn of_words(words: [u32; 2]) -> Option<Self> {
        Some(match words[0] {
            0 => Self::Welcome,
            1 => Self::WrongSecret,
            2 => Self::OtherJob,
            3 => Self::OtherCount(words[1]),
            4 => Self::NumberTaken,
            _ => return None,
        })
    }
}

/// The keys of a connection, one for each direction.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// For what goes to process 0.
    pub(super) to_first: [u8; blake3::KEY_LEN],
    /// For what process 0 sends.
    pub(super) from_first: [u8; blake3::KEY_LEN],
}

/// All that both sides have said before they prove themselves.
pub(super) struct Transcript<'a> {
    secret: &'a Secret,
    bytes: Vec<u8>,
}

impl<'a> Transcript<'a> {
    pub(super) fn new(secret: &'a Secret, hello: &Hello, challenge: &Challenge) -> Self {
        Self { secret, bytes: [&hello.to_bytes()[..], &challenge.to_bytes()].concat() }
    }

    /// What a process other than 0 proves itself by.
    pub(super) fn proof(&self) -> blake3::Hash {
        self.secret.tag("proof of a process", &self.bytes)
    }

    pub(super) fn is_proof(&self, proof: [u8; PROOF_BYTES]) -> bool {
        // This comparison takes constant time.
        self.proof() == proof
    }

    /// What process 0 answers, and proves itself by.
    pub(super) fn answer(&self, answer: Answer) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        for (at, word) in answer.to_words().into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        // Whoever has not proved himself gets nothing to try secrets on.
        if answer != Answer::WrongSecret {
            let tag = self.answer_tag(&bytes[..8]);
            bytes[8..].copy_from_slice(tag.as_bytes());
        }
        bytes
    }

    /// The answer, and whether process 0 has proved that it is its own. None where the bytes are no answer.
    pub(super) fn read_answer(&self, bytes: &[u8; ANSWER_BYTES]) -> Option<(Answer, bool)> {
        let answer = Answer::of_words([number(bytes, 0), number(bytes, 4)])?;
        let tag: [u8; TAG_BYTES] = piece(bytes, 8);
        Some((answer, self.answer_tag(&bytes[..8]) == tag))
    }

    fn answer_tag(&self, words: &[u8]) -> blake3::Hash {
        self.secret.tag("answer of process 0", &[&self.bytes, words].concat())
    }

    pub(super) fn keys(&self) -> Keys {
        Keys {
            to_first: *self.secret.tag("key to process 0", &self.bytes).as_bytes(),
            from_first: *self.secret.tag("key from process 0", &self.bytes).as_bytes(),
        }
    }
}

/// Bytes that nobody can foresee.
///
/// # Errors
/// Where the system has no randomness.
pub(super) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(piece(bytes, at))
}

fn piece<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let (job, instance) = (job_tag(Some("12")), [9; 16]);
        Hello {
            process: Process(3),
            processes: 4,
            line: Line::Watch,
            secret: true,
            job,
            instance,
            nonce: [1; 32],
        }
    }

    const CHALLENGE: Challenge = Challenge { secret: true, nonce: [2; 32] };

    fn secret() -> Secret {
        Secret::new(b"correct horse battery staple", "a test").unwrap()
    }

    #[test]
    fn what_is_said_is_read_again() {
        assert_eq!(Hello::read(&hello().to_bytes()), Some(hello()));
        assert_eq!(Challenge::read(&CHALLENGE.to_bytes()), Some(CHALLENGE));
        let secret = secret();
        let transcript = Transcript::new(&secret, &hello(), &CHALLENGE);
        for answer in [Answer::Welcome, Answer::OtherJob, Answer::OtherCount(7), Answer::NumberTaken] {
            assert_eq!(transcript.read_answer(&transcript.answer(answer)), Some((answer, true)));
        }
        // A stranger gets nothing to try secrets on.
        let refusal = transcript.answer(Answer::WrongSecret);
        assert_eq!(transcript.read_answer(&refusal), Some((Answer::WrongSecret, false)));
        assert_eq!(refusal[8..], [0; 32]);
        assert!(Hello::read(&[0; HELLO_BYTES]).is_none());
        let mut old = hello().to_bytes();
        old[7] = b'2';
        assert!(Hello::read(&old).is_none());
    }

    #[test]
    fn a_proof_holds_for_one_secret_process_line_job_size_and_pair_of_nonces() {
        let (own, none) = (secret(), Secret::none());
        let proof = *Transcript::new(&own, &hello(), &CHALLENGE).proof().as_bytes();
        assert!(Transcript::new(&own, &hello(), &CHALLENGE).is_proof(proof));
        assert!(!Transcript::new(&none, &hello(), &CHALLENGE).is_proof(proof));
        for other in [
            Hello { process: Process(2), ..hello() },
            Hello { processes: 5, ..hello() },
            Hello { line: Line::Values, ..hello() },
            Hello { job: job_tag(None), ..hello() },
            Hello { instance: [8; 16], ..hello() },
            Hello { nonce: [3; 32], ..hello() },
        ] {
            assert!(!Transcript::new(&own, &other, &CHALLENGE).is_proof(proof), "{other:?}");
        }
        let replayed = Challenge { nonce: [3; 32], ..CHALLENGE };
        assert!(!Transcript::new(&own, &hello(), &replayed).is_proof(proof));
    }

    #[test]
    fn a_proof_that_is_sent_back_proves_nothing() {
        let secret = secret();
        let transcript = Transcript::new(&secret, &hello(), &CHALLENGE);
        let mut reflected = transcript.answer(Answer::Welcome);
        reflected[8..].copy_from_slice(transcript.proof().as_bytes());
        assert_eq!(transcript.read_answer(&reflected), Some((Answer::Welcome, false)));
        // An answer is worth nothing for another one.
        let mut changed = transcript.answer(Answer::OtherJob);
        changed[0] = 0;
        assert_eq!(transcript.read_answer(&changed), Some((Answer::Welcome, false)));
        let Keys { to_first, from_first } = transcript.keys();
        assert_ne!(to_first, from_first);
    }
}
