//! Which batches enter a shard (R2).

use bytes::{BufMut as _, Bytes, BytesMut};
use pando_proto::mds::FenceRecord;
use prost::Message as _;

const FORMAT: u8 = 1;

/// A subtree's fence and position in one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// Batches of a lower epoch are refused.
    pub epoch: u64,
    /// (epoch, batch) of the last batch applied.
    pub applied: (u64, u64),
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Of an old owner.
    Refused,
    /// Applied before.
    Done,
    /// To be applied, with this fence in the same transaction.
    Apply(Fence),
}

impl Fence {
    /// Decides on a batch; the fence must count the writes in flight.
    pub(crate) fn admit(self, epoch: u64, batch: u64) -> Entry {
        if epoch < self.epoch {
            Entry::Refused
        } else if (epoch, batch) <= self.applied {
            Entry::Done
        } else {
            Entry::Apply(Self { epoch, applied: (epoch, batch) })
        }
    }

    /// The fence after raising it; `None` if it is as high already. Keeps the position.
    pub(crate) fn raise(self, epoch: u64) -> Option<Self> {
        (epoch > self.epoch).then_some(Self { epoch, ..self })
    }

    /// Value of the record `f/<subtree>`.
    pub fn encode(self) -> Bytes {
        let record =
            FenceRecord { fence_epoch: self.epoch, applied_epoch: self.applied.0, applied_batch: self.applied.1 };
        let mut value = BytesMut::with_capacity(1 + record.encoded_len());
        value.put_u8(FORMAT);
        value.put_slice(&record.encode_to_vec());
        value.freeze()
    }

    /// Reads the record; an absent one lets everything in, `None` means an unknown format.
    pub fn decode(value: Option<&[u8]>) -> Option<Self> {
        let Some(value) = value else { return Some(Self::default()) };
        let (format, rest) = value.split_first()?;
        let record = FenceRecord::decode(rest).ok().filter(|_| *format == FORMAT)?;
        Some(Self { epoch: record.fence_epoch, applied: (record.applied_epoch, record.applied_batch) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r2_a_batch_enters_once_and_in_order() {
        let fence = Fence::default();
        let Entry::Apply(one) = fence.admit(1, 1) else { panic!() };
        let Entry::Apply(two) = one.admit(1, 2) else { panic!() };
        assert_eq!(two.admit(1, 1), Entry::Done, "a late copy of batch 1");
        assert_eq!(two.admit(1, 2), Entry::Done);
        assert_eq!(two.admit(2, 1), Entry::Apply(Fence { epoch: 2, applied: (2, 1) }));
    }

    #[test]
    fn r2_a_raised_fence_keeps_the_position_and_refuses_the_old_owner() {
        let fence = Fence { epoch: 3, applied: (3, 9) };
        let raised = fence.raise(5).unwrap();
        assert_eq!(raised, Fence { epoch: 5, applied: (3, 9) });
        assert_eq!(raised.raise(5), None);
        assert_eq!(raised.raise(4), None, "a fence is never lowered (R11)");
        assert_eq!(raised.admit(3, 10), Entry::Refused);
        assert_eq!(raised.admit(3, 9), Entry::Refused);
        assert_eq!(raised.admit(5, 1), Entry::Apply(Fence { epoch: 5, applied: (5, 1) }));
    }

    #[test]
    fn a_record_is_read_back() {
        let fence = Fence { epoch: 300, applied: (2, u64::MAX) };
        assert_eq!(Fence::decode(Some(&fence.encode())), Some(fence));
        assert_eq!(Fence::decode(None), Some(Fence::default()));
        assert_eq!(Fence::decode(Some(b"\x02")), None);
        assert_eq!(Fence::decode(Some(b"")), None);
    }
}
