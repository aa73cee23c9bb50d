//! Wishes that must be refused, and what the refusal must say.
