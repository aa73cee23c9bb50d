//! Bytes of a token in the KV cache of a model.

use clap::{Args, ValueEnum};
use kvrail_store::BLOCK_BYTES_MAX;
use kvrail_units::Size;

use kvrail_cli::failure::{Exit, Failure};

/// Most of any one number of a shape, and bytes of a token: no model comes near.
const SHAPE_MAX: u64 = 1 << 20;
const TOKEN_BYTES_MAX: u64 = 64 << 20;

/// A model's shape, as its `config.json` has it.
#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    /// Layers that have a KV cache (num_hidden_layers)
    #[arg(long, value_name = "N")]
    layers: Option<u64>,
    /// KV heads of a layer (num_key_value_heads)
    #[arg(long, value_name = "N", requires = "head_size")]
    kv_heads: Option<u64>,
    /// Size of a head (head_dim, or hidden_size / num_attention_heads)
    #[arg(long, value_name = "N", requires = "kv_heads")]
    head_size: Option<u64>,
    /// Of a model with latent attention (MLA): values of a token and layer (kv_lora_rank +
    /// qk_rope_head_dim), instead of heads
    #[arg(long, value_name = "N", conflicts_with_all = ["kv_heads", "head_size"])]
    mla_rank: Option<u64>,
    /// Type of a value in the cache
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: Dtype,
    /// Bytes of a token instead of a shape, for layouts that have scales beside their values
    #[arg(
        long,
        value_name = "BYTES",
        conflicts_with_all = ["layers", "kv_heads", "head_size", "mla_rank", "dtype"]
    )]
    token_bytes: Option<u64>,
    /// Tokens of a block, as the engine's connector puts them; by default the trace's own number,
    /// else 256
    #[arg(long, value_name = "N")]
    block_tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dtype {
    Fp32,
    Bf16,
    Fp16,
    Fp8,
    Int8,
    Fp4,
}

impl Dtype {
    fn bits(self) -> u64 {
        match self {
            Self::Fp32 => 32,
            Self::Bf16 | Self::Fp16 => 16,
            Self::Fp8 | Self::Int8 => 8,
            Self::Fp4 => 4,
        }
    }
}

/// Blocks of a model's cache.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) token_bytes: u64,
    pub(super) block_tokens: u64,
    pub(super) block_bytes: u32,
    /// How a token's bytes come about.
    pub(super) words: String,
}

/// Tokens of a block where neither an option nor the trace has the number.
const BLOCK_TOKENS: u64 = 256;

impl ModelArgs {
    /// The blocks; a trace may know the tokens of its own.
    pub(super) fn model(&self, trace_tokens: Option<u64>) -> Result<Model, Failure> {
        let (token_bytes, words) = self.token()?;
        let known = self.block_tokens.map(|tokens| ("--block-tokens", tokens));
        let (name, block_tokens) = known.unwrap_or_else(|| {
            let tokens = trace_tokens.unwrap_or(BLOCK_TOKENS);
            (if trace_tokens.is_some() { "the trace's blocks" } else { "--block-tokens" }, tokens)
        });
        in_range(name, block_tokens, SHAPE_MAX)?;
        let bytes = u32::try_from(token_bytes * block_tokens).ok();
        let Some(block_bytes) = bytes.filter(|bytes| *bytes <= BLOCK_BYTES_MAX) else {
            let words = format!(
                "{name} {block_tokens}: a block of {token_bytes} bytes a token has more than {}",
                Size::new(BLOCK_BYTES_MAX.into())
            );
            let most = u64::from(BLOCK_BYTES_MAX) / token_bytes;
            return Err(Failure::new(Exit::Usage, words)
                .with_remedy(format!("give --block-tokens {most} or less")));
        };
        Ok(Model { token_bytes, block_tokens, block_bytes, words })
    }

    fn token(&self) -> Result<(u64, String), Failure> {
        if let Some(bytes) = self.token_bytes {
            in_range("--token-bytes", bytes, TOKEN_BYTES_MAX)?;
            return Ok((bytes, "as given".to_owned()));
        }
        let numbers = [
            ("--layers", self.layers),
            ("--kv-heads", self.kv_heads),
            ("--head-size", self.head_size),
            ("--mla-rank", self.mla_rank),
        ];
        for (name, value) in
            numbers.iter().filter_map(|(name, value)| value.map(|value| (name, value)))
        {
            in_range(name, value, SHAPE_MAX)?;
        }
        let kind = format!("{:?}", self.dtype).to_lowercase();
        let (values, words) = match (self.layers, self.mla_rank, self.kv_heads, self.head_size) {
            (Some(layers), Some(rank), ..) => {
                (u128::from(layers) * u128::from(rank), format!("{layers} layers x {rank}"))
            }
            (Some(layers), None, Some(heads), Some(size)) => (
                2 * u128::from(layers) * u128::from(heads) * u128::from(size),
                format!("2 (K and V) x {layers} layers x {heads} heads x {size}"),
            ),
            _ => return Err(missing()),
        };
        let bytes = (values * u128::from(self.dtype.bits())).div_ceil(8);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if bytes > TOKEN_BYTES_MAX {
            let words = format!("--layers and heads: a token has {bytes} bytes, more than 64MiB");
            return Err(Failure::new(Exit::Usage, words)
                .with_remedy("give the numbers of the model's config.json"));
        }
        Ok((bytes, format!("{words} x {} bits ({kind})", self.dtype.bits())))
    }
}

fn missing() -> Failure {
    Failure::new(Exit::Usage, "the bytes of a token in the KV cache are unknown").with_remedy(
        "name the shape in the model's config.json: --layers with --kv-heads and --head-size, \
             or with --mla-rank; or give --token-bytes",
    )
}

fn in_range(name: &str, value: u64, most: u64) -> Result<(), Failure> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("{name} {value}: must be 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::ModelArgs;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn model(line: &str, trace: Option<u64>) -> Result<(u64, u64, u32), String> {
        let words = std::iter::once("size").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let model = cli.model.model(trace).map_err(|failure| format!("{failure:?}"))?;
        Ok((model.token_bytes, model.block_tokens, model.block_bytes))
    }

    /// Bytes as engines have them: Llama 3 70B, and DeepSeek V3 in both of its types.
    #[test]
    fn a_token_has_the_bytes_that_engines_give_it() {
        let llama = "--layers 80 --kv-heads 8 --head-size 128";
        assert_eq!(model(llama, None), Ok((327_680, 256, 83_886_080)));
        assert_eq!(model(&format!("{llama} --dtype fp8"), Some(16)), Ok((163_840, 16, 2_621_440)));
        let deepseek = "--layers 61 --mla-rank 576 --block-tokens 16";
        assert_eq!(model(deepseek, Some(512)), Ok((70_272, 16, 1_124_352)));
        assert_eq!(model("--token-bytes 40016 --block-tokens 16", None), Ok((40_016, 16, 640_256)));
        assert_eq!(model("--layers 1 --mla-rank 3 --dtype fp4", Some(1)), Ok((2, 1, 2)));
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        let wrong = [
            ("", "--token-bytes"),
            ("--layers 80", "--mla-rank"),
            ("--layers 80 --kv-heads 8", "--head-size"),
            ("--layers 0 --mla-rank 576", "--layers 0: must be 1"),
            ("--layers 80 --mla-rank 576 --kv-heads 8 --head-size 1", "cannot be used with"),
            ("--layers 80 --mla-rank 576 --dtype bf61", "bf16"),
            ("--layers 1048576 --mla-rank 1048576", "more than 64MiB"),
            ("--token-bytes 40016 --block-tokens 100000", "--block-tokens 3354 or less"),
            ("--token-bytes 40016 --block-tokens 0", "--block-tokens 0"),
        ];
        for (line, named) in wrong {
            let said = model(line, None).unwrap_err();
            assert!(said.contains(named), "{line}: {said}");
        }
    }
}
