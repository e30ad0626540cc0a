//! The link between a root port and its disk, as both show it.

use serde::{Deserialize, Serialize};

/// Transfers per second and lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkSpeed {
    #[serde(rename = "2.5GT/s")]
    Gt2_5,
    #[serde(rename = "5GT/s")]
    Gt5,
    #[serde(rename = "8GT/s")]
    Gt8,
    #[default]
    #[serde(rename = "16GT/s")]
    Gt16,
}

/// Lanes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkWidth {
    #[serde(rename = "x1")]
    X1,
    #[serde(rename = "x2")]
    X2,
    #[default]
    #[serde(rename = "x4")]
    X4,
}

/// The speeds that ports and disks support: all of [`LinkSpeed`], as in the link
/// capabilities 2 register.
pub(crate) const LINK_SPEEDS: u32 = 0x1e;

/// Speed and width that a link has reached. At most, which is the default, it is
/// 16 GT/s on four lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub speed: LinkSpeed,
    pub width: LinkWidth,
}

impl Link {
    /// Speed and width as in the link capabilities and link status registers
    /// (PCI Express Base Specification 4.0, sections 7.5.3.6 and 7.5.3.8).
    pub(crate) fn bits(self) -> u16 {
        let speed = match self.speed {
            LinkSpeed::Gt2_5 => 1,
            LinkSpeed::Gt5 => 2,
            LinkSpeed::Gt8 => 3,
            LinkSpeed::Gt16 => 4,
        };
        let width = match self.width {
            LinkWidth::X1 => 1,
            LinkWidth::X2 => 2,
            LinkWidth::X4 => 4,
        };
        speed | width << 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_written_as_people_write_it() {
        assert_eq!(Link::default().bits(), 0x44);
        let link: Link = serde_json::from_str(r#"{"speed":"8GT/s","width":"x2"}"#).unwrap();
        assert_eq!(link.bits(), 0x23);
        assert!(serde_json::from_str::<Link>(r#"{"speed":"8GT/s","width":"x3"}"#).is_err());
    }
}
