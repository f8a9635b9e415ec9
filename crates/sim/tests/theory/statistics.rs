//! Means with their standard error.

/// A mean of independent samples.
#[derive(Debug, Clone, Copy)]
pub struct Mean {
    pub value: f64,
    /// Standard error.
    pub error: f64,
}

/// Returns the mean of at least two samples.
pub fn mean(samples: &[f64]) -> Mean {
    let n = samples.len() as f64;
    let value = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|s| (s - value).powi(2)).sum();
    Mean {
        value,
        error: (squares / (n - 1.0) / n).sqrt(),
    }
}
