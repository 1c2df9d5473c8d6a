//! Extended attributes.

use std::path::Path;

use bytes::Bytes;
use pando_proto::mds::{self, GetXattrRequest, ListXattrRequest, RemoveXattrRequest, SetXattrRequest};

use crate::client::call;
use crate::path::check_xattr_name;
use crate::{Client, Result, XattrMode, path};

impl Client {
    /// An extended attribute of what `path` leads to.
    ///
    /// Errors: ENODATA if there is none of this name, ENOENT, EACCES.
    pub async fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Bytes> {
        let path = path::check(path.as_ref())?;
        let request = GetXattrRequest {
            caller: self.caller(),
            target: Some(path.target()),
            follow: true,
            name: check_xattr_name(name.as_ref())?,
        };
        Ok(call!(self, &path, GetXattr, request)?.value)
    }

    /// Sets an extended attribute.
    ///
    /// Errors: EEXIST, ENODATA (by mode), ENOSPC or E2BIG for too much, EOPNOTSUPP, EPERM.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let path = path::check(path.as_ref())?;
        let mode = match mode {
            XattrMode::Set => mds::XattrMode::Set,
            XattrMode::Create => mds::XattrMode::Create,
            XattrMode::Replace => mds::XattrMode::Replace,
        };
        let request = SetXattrRequest {
            caller: self.caller(),
            target: Some(path.target()),
            follow: true,
            name: check_xattr_name(name.as_ref())?,
            value: Bytes::copy_from_slice(value.as_ref()),
            mode: mode.into(),
        };
        call!(self, &path, SetXattr, request).map(|_| ())
    }

    /// Names of all extended attributes.
    ///
    /// Errors: ENOENT, EACCES.
    pub async fn list_xattr(&self, path: impl AsRef<Path>) -> Result<Vec<Bytes>> {
        let path = path::check(path.as_ref())?;
        let request = ListXattrRequest { caller: self.caller(), target: Some(path.target()), follow: true };
        Ok(call!(self, &path, ListXattr, request)?.names)
    }

    /// Removes an extended attribute.
    ///
    /// Errors: ENODATA, EPERM.
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        let path = path::check(path.as_ref())?;
        let request = RemoveXattrRequest {
            caller: self.caller(),
            target: Some(path.target()),
            follow: true,
            name: check_xattr_name(name.as_ref())?,
        };
        call!(self, &path, RemoveXattr, request).map(|_| ())
    }
}
