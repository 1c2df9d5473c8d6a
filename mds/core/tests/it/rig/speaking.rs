//! Operations that are known to succeed, or to fail, and what they say.

use super::*;

impl Rig {
    pub fn run(&mut self, op: Op) -> Result<Reply, Error> {
        self.now += 1;
        self.run_as(ClientId(1), op)
    }

    pub fn errno(&mut self, op: Op) -> Errno {
        match self.run(op) {
            Err(error) => error.errno,
            Ok(reply) => panic!("expected an error, got {reply:?}"),
        }
    }

    pub fn ok(&mut self, op: Op) -> Reply {
        let text = format!("{op:?}");
        self.run(op).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    pub fn stat(&mut self, path: &str) -> Attr {
        match self.ok(stat(path)) {
            Reply::Stat(reply) => reply.attr.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, path: &str) -> Vec<u8> {
        match self.ok(read_file(path)) {
            Reply::ReadFile(ReadFileResponse { body: Some(body), .. }) => body.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    pub fn list(&mut self, path: &str) -> Vec<String> {
        let (mut names, mut after) = (Vec::<String>::new(), String::new());
        loop {
            let Reply::Readdir(page) = self.ok(readdir(path, &after, 0)) else { panic!("wrong reply") };
            names.extend(page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
            if page.end {
                return names;
            }
            after = names.last().expect("a page that is not the last has entries").clone();
        }
    }

    pub fn write(&mut self, path: &str, data: &[u8]) -> Attr {
        match self.ok(write_file(path, data)) {
            Reply::WriteFile(reply) => reply.attr.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn open(&mut self, path: &str, handle: u64, flags: u32) -> OpenResponse {
        match self.ok(open(path, handle, flags)) {
            Reply::Open(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// A client's write to an open file: inline, or objects and a size report.
    pub fn write_at(&mut self, client: ClientId, handle: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        let request =
            WriteRequest { handle, offset, data: Bytes::copy_from_slice(data), append: false, ..Default::default() };
        let Reply::Write(reply) = self.run_as(client, Op::Write(request))? else { panic!("wrong reply") };
        if reply.written {
            return Ok(());
        }
        // R23: the grant is durable before the client writes; R22: and so are the cuts before it.
        self.flush();
        let placement = reply.placement.unwrap();
        let ino = Ino(reply.attr.unwrap().ino);
        let end = reply.offset + data.len() as u64;
        assert!(end <= placement.max_size);
        self.put_objects(ino, placement.generation, reply.offset, data);
        let report = SizeReport { size: end, truncate_seq: placement.truncate_seq, mtime: self.now };
        self.run_as(client, Op::ReportSize(ReportSizeRequest { handle, report: Some(report), ..Default::default() }))?;
        self.flush();
        Ok(())
    }

    pub fn put_objects(&mut self, ino: Ino, generation: u64, offset: u64, data: &[u8]) {
        assert!(self.try_put_objects(ino, generation, offset, data), "R22: no write of an older generation");
    }

    /// False if an object refused it as stale.
    pub fn try_put_objects(&mut self, ino: Ino, generation: u64, offset: u64, data: &[u8]) -> bool {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = at % OBJECT_SIZE;
            let (part, after) = rest.split_at(rest.len().min((OBJECT_SIZE - within) as usize));
            if !self.objects.write(ino, at / OBJECT_SIZE, generation, within as usize, part) {
                return false;
            }
            (at, rest) = (at + part.len() as u64, after);
        }
        true
    }

    /// Content of a file wherever it is.
    pub fn content(&mut self, reply: &ReadFileResponse) -> Vec<u8> {
        if let Some(body) = &reply.body {
            return body.to_vec();
        }
        self.flush();
        let attr = reply.attr.unwrap();
        let (generation, mut bytes) = self.objects.file(Ino(attr.ino));
        assert!(generation <= reply.placement.unwrap().generation, "R22: no object refuses the reader");
        bytes.resize(attr.size as usize, 0);
        bytes
    }
}
