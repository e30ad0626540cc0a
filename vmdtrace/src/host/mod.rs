//! What the host says of itself in `/sys` and `/proc`. Every reader takes its
//! root directory as an argument, so tests run on captured trees.

pub mod topology;
