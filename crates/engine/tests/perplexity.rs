//! Perplexity against a direct computation, token by token.

mod support;

use goldcrest_engine::perplexity::{Perplexity, PerplexityError, windows};
use goldcrest_engine::{EngineOptions, FeedError, Want};
use support::{Random, engine, feed, golden, log_prob, session};

const CONTEXT: usize = 24;

#[test]
fn perplexity_is_the_exponential_of_the_mean_surprise() {
    let engine = engine(&golden("llama3"), EngineOptions::exact());
    let vocabulary = engine.spec().vocabulary;
    let (before, text) = (Random(1).ids(1, vocabulary), Random(2).ids(3 * CONTEXT + 5, vocabulary));
    let mut measured = Perplexity::default();
    let mut direct = Vec::new();
    // One session for all windows: what it held before must not matter.
    let mut one = session(&engine, CONTEXT);
    for window in windows(&before, &text, CONTEXT) {
        measured.add_window(&mut one, &window, None).unwrap();
        let mut fresh = session(&engine, CONTEXT);
        for (id, next) in window.iter().zip(&window[1..]) {
            direct.push(-log_prob(&feed(&mut fresh, &[*id], Want::All), *next));
        }
    }
    // Behind a begin token, every token of the text is predicted.
    assert_eq!((measured.tokens() as usize, direct.len()), (text.len(), text.len()));
    let mean = direct.iter().sum::<f64>() / direct.len() as f64;
    let variance = direct.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (direct.len() - 1) as f64;
    let error = (variance / direct.len() as f64).sqrt();
    let close = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-12, "{found} for {wanted}");
    close(measured.mean_nll(), mean);
    close(measured.standard_error_nll(), error);
    close(measured.value(), libm::exp(mean));
    close(measured.standard_error(), libm::exp(mean) * error);
}

#[test]
fn a_window_longer_than_the_session_is_refused() {
    let engine = engine(&golden("llama3"), EngineOptions::exact());
    let mut measured = Perplexity::default();
    let error = measured
        .add_window(&mut session(&engine, 4), &[1; 6], None)
        .unwrap_err();
    let too_long = matches!(
        error,
        PerplexityError::Feed(FeedError::CapacityExceeded {
            tokens: 5,
            capacity: 4,
            ..
        })
    );
    assert!(too_long, "{error}");
    assert_eq!(measured, Perplexity::default());
}
