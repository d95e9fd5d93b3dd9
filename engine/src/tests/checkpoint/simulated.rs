//! A file system in memory that loses what was not made durable when its power fails.
//!
//! After a power failure, bytes that were written but not synced may be present, missing, truncated, or zeros; so may
//! names that were made, changed or removed since their folder was synced, each independently. No real file system
//! does more than that to a program.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rankine_checkpoint::files::DIRECT_ALIGN;
use rankine_checkpoint::{Files, Input, Output};

#[derive(Debug, Clone)]
enum Node {
    File(Arc<Mutex<Data>>),
    Dir(Arc<Mutex<Dir>>),
}

#[derive(Debug, Clone, Default)]
struct Data {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
struct Dir {
    now: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
}

/// The file system; its root is durable.
#[derive(Debug, Default)]
pub(super) struct Simulated {
    root: Arc<Mutex<Dir>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_same(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::File(one), Node::File(other)) => Arc::ptr_eq(one, other),
        (Node::Dir(one), Node::Dir(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

fn names(path: &Path) -> Vec<String> {
    let plain = |component: Component<'_>| match component {
        Component::Normal(name) => name.to_str().map(ToOwned::to_owned),
        _ => None,
    };
    path.components().filter_map(plain).collect()
}

impl Simulated {
    fn dir(&self, path: &Path) -> io::Result<Arc<Mutex<Dir>>> {
        let mut at = Arc::clone(&self.root);
        for name in names(path) {
            let next = locked(&at).now.get(&name).cloned();
            at = match next {
                Some(Node::Dir(dir)) => dir,
                Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                None => return Err(ErrorKind::NotFound.into()),
            };
        }
        Ok(at)
    }

    /// The folder of a path, and the name in it.
    fn place(&self, path: &Path) -> io::Result<(Arc<Mutex<Dir>>, String)> {
        let name = names(path).pop().ok_or(ErrorKind::InvalidInput)?;
        Ok((self.dir(path.parent().unwrap_or(Path::new("")))?, name))
    }

    /// The state after a power failure.
    pub(super) fn after_power_failure(&self, next: &mut dyn FnMut() -> u64) -> Self {
        Self { root: Arc::new(Mutex::new(surviving(&locked(&self.root), next))) }
    }

    /// Changes the bytes of a file.
    pub(super) fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let (dir, name) = self.place(path).unwrap();
        let dir = locked(&dir);
        let Some(Node::File(file)) = dir.now.get(&name) else { panic!("no file {path:?}") };
        let mut file = locked(file);
        change(&mut file.now);
    }
}

fn surviving(dir: &Dir, next: &mut dyn FnMut() -> u64) -> Dir {
    let mut entries = BTreeMap::new();
    for name in dir.durable.keys().chain(dir.now.keys().filter(|name| !dir.durable.contains_key(*name))) {
        let (durable, now) = (dir.durable.get(name), dir.now.get(name));
        let settled = durable.zip(now).is_some_and(|(one, other)| is_same(one, other));
        let node = if settled || next().is_multiple_of(2) { now } else { durable };
        let Some(node) = node else { continue };
        let node = match node {
            Node::Dir(dir) => Node::Dir(Arc::new(Mutex::new(surviving(&locked(dir), next)))),
            Node::File(file) => {
                let Data { now, durable } = &*locked(file);
                let bytes = if now == durable {
                    now.clone()
                } else {
                    let cut = next() as usize % (now.len() + 1);
                    match next() % 4 {
                        0 => durable.clone(),
                        1 => now.clone(),
                        2 => now[..cut].to_vec(),
                        _ => [&now[..cut], &vec![0; now.len() - cut]].concat(),
                    }
                };
                Node::File(Arc::new(Mutex::new(Data { now: bytes.clone(), durable: bytes })))
            }
        };
        entries.insert(name.clone(), node);
    }
    Dir { durable: entries.clone(), now: entries }
}

impl Files for Simulated {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut at = Arc::clone(&self.root);
        for name in names(path) {
            let next = {
                let mut dir = locked(&at);
                let node = dir.now.entry(name).or_insert_with(|| Node::Dir(Arc::default()));
                match node {
                    Node::Dir(dir) => Arc::clone(dir),
                    Node::File(_) => return Err(ErrorKind::AlreadyExists.into()),
                }
            };
            at = next;
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let (dir, name) = self.place(path)?;
        let mut dir = locked(&dir);
        if dir.now.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let file = Arc::<Mutex<Data>>::default();
        dir.now.insert(name, Node::File(Arc::clone(&file)));
        Ok(Box::new(Opened(file)))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let dir = self.dir(path)?;
        let mut dir = locked(&dir);
        dir.durable = dir.now.clone();
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, name) = self.place(from)?;
        let node = locked(&from).now.remove(&name).ok_or(ErrorKind::NotFound)?;
        let (to, name) = self.place(to)?;
        locked(&to).now.insert(name, node);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        // Its entries are removed first, one by one.
        if let Some(Node::Dir(own)) = locked(&dir).now.get(&name) {
            locked(own).now.clear();
        }
        locked(&dir).now.remove(&name).map(drop).ok_or(ErrorKind::NotFound.into())
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        match self.dir(path) {
            Ok(dir) => Ok(locked(&dir).now.keys().cloned().collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Input>> {
        let (dir, name) = self.place(path)?;
        let node = locked(&dir).now.get(&name).cloned();
        match node {
            Some(Node::File(file)) => Ok(Box::new(Opened(file))),
            Some(Node::Dir(_)) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn tree_bytes(&self, path: &Path) -> io::Result<u64> {
        let (dir, name) = self.place(path)?;
        let node = locked(&dir).now.get(&name).cloned();
        Ok(bytes_of(&node.ok_or(ErrorKind::NotFound)?))
    }
}

/// The bytes of a file, or of all files below a folder.
fn bytes_of(node: &Node) -> u64 {
    match node {
        Node::File(file) => locked(file).now.len() as u64,
        Node::Dir(dir) => locked(dir).now.values().map(bytes_of).sum(),
    }
}

struct Opened(Arc<Mutex<Data>>);

impl Output for Opened {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let data = &mut locked(&self.0).now;
        let range = offset as usize..offset as usize + bytes.len();
        let len = data.len().max(range.end);
        data.resize(len, 0);
        data[range].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_direct_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let is_aligned = |number: usize| number.is_multiple_of(DIRECT_ALIGN);
        let address = bytes.as_ptr().addr();
        let all = is_aligned(address) && is_aligned(offset as usize) && is_aligned(bytes.len());
        assert!(all, "a direct write of {} bytes at {address} to {offset}", bytes.len());
        self.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let mut data = locked(&self.0);
        data.durable = data.now.clone();
        Ok(())
    }
}

impl Input for Opened {
    fn size(&self) -> io::Result<u64> {
        Ok(locked(&self.0).now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let data = locked(&self.0);
        let rest = data.now.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}
