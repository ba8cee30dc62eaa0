//! A password that is encrypted with the public key of a server, for `caching_sha2_password` without TLS.

use num_bigint::BigUint;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA1_OUTPUT_LEN};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::ClientError;

/// The longest key, in bytes, so that a server cannot have this one compute for long.
const MODULUS: usize = 1024;
const EXPONENT: usize = 4;

/// The password and a zero, masked by the challenge and encrypted by RSA with OAEP and SHA-1, as servers expect it.
///
/// # Errors
/// [`ClientError::Protocol`] if this is no key that can be used.
pub fn encrypted(password: &[u8], challenge: &[u8], pem: &[u8]) -> Result<Vec<u8>, ClientError> {
    let mut text = [password, &[0]].concat();
    for (byte, mask) in text.iter_mut().zip(challenge.iter().cycle()) {
        *byte ^= mask;
    }
    let unusable = || ClientError::protocol("its public key cannot be used");
    let (_, pem) = parse_x509_pem(pem).map_err(|_| unusable())?;
    let (_, info) = SubjectPublicKeyInfo::from_der(&pem.contents).map_err(|_| unusable())?;
    let Ok(PublicKey::RSA(key)) = info.parsed() else {
        return Err(unusable());
    };
    let modulus = BigUint::from_bytes_be(key.modulus);
    let size = modulus.to_bytes_be().len();
    if size > MODULUS || size < text.len() + 2 * SHA1_OUTPUT_LEN + 2 || key.exponent.len() > EXPONENT {
        return Err(unusable());
    }
    let mut seed = [0; SHA1_OUTPUT_LEN];
    getrandom::fill(&mut seed).map_err(|error| ClientError::protocol(error.to_string()))?;
    let padded = BigUint::from_bytes_be(&padded(&text, size, seed));
    let encrypted = padded
        .modpow(&BigUint::from_bytes_be(key.exponent), &modulus)
        .to_bytes_be();
    let mut answer = vec![0; size - encrypted.len()];
    answer.extend(encrypted);
    Ok(answer)
}

/// The block of OAEP without a label (RFC 8017, 7.1.1), for a key of so many bytes.
fn padded(text: &[u8], size: usize, seed: [u8; SHA1_OUTPUT_LEN]) -> Vec<u8> {
    let mut block = sha1(&[]).to_vec();
    block.resize(size - SHA1_OUTPUT_LEN - 2 - text.len(), 0);
    block.push(1);
    block.extend_from_slice(text);
    mask(&mut block, &seed);
    let mut masked = seed;
    mask(&mut masked, &block);
    [&[0], &masked[..], &block].concat()
}

/// Masks bytes with MGF1 of a seed.
fn mask(bytes: &mut [u8], seed: &[u8]) {
    for (chunk, counter) in bytes.chunks_mut(SHA1_OUTPUT_LEN).zip(0_u32..) {
        let mask = sha1(&[seed, &counter.to_be_bytes()]);
        chunk.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

fn sha1(parts: &[&[u8]]) -> [u8; SHA1_OUTPUT_LEN] {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    parts.iter().for_each(|part| context.update(part));
    let mut hash = [0; SHA1_OUTPUT_LEN];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "\
-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCwA0AtrQEhiZqPWROTukdgr/2f
ssiyusLBFSc7SDwSz0ZD1z54xXeNnuwV2dttjURm1d9Nx/rg+25DO++HSfBUtidO
zLqkBA0DhqQDKzvggl3ozbe/YOU2vShuwWopO/oh5urNe8/hL3b5yc/L5RHeVHYd
8pUlPIGoHGX+Y8dZxwIDAQAB
-----END PUBLIC KEY-----
";

    #[test]
    fn a_key_that_cannot_be_used_is_refused() {
        for pem in [
            b"".as_slice(),
            b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        ] {
            let refused = encrypted(b"secret", &[7; 20], pem).expect_err("no key");
            assert_eq!(refused.to_string(), "its public key cannot be used");
        }
        let long = encrypted(&[7; 300], &[7; 20], KEY.as_bytes()).expect_err("too long for the key");
        assert_eq!(long.to_string(), "its public key cannot be used");
    }

    #[test]
    fn the_holder_of_the_private_key_reads_the_password() {
        let block = encrypted(b"secret", &[7; 20], KEY.as_bytes()).expect("a key");
        let private = BigUint::parse_bytes(b"5003da4c2966e73927f35cba42a11f4bbc15df60a64e620aa13e1d8c9ca4faa411bc4b8091e4ab19cd9263c89b312d54582f8809530d20f40c47325b0cb4b734f9ca7b2785668a223d45c643708d3aa64d4faa61462378644d629ca5cb084552cac096248328b8135363c98df595867ffe9b95e6207abd42ead8b5758286bba1", 16).expect("digits");
        let modulus = BigUint::parse_bytes(b"00b003402dad0121899a8f591393ba4760affd9fb2c8b2bac2c115273b483c12cf4643d73e78c5778d9eec15d9db6d8d4466d5df4dc7fae0fb6e433bef8749f054b6274eccbaa4040d0386a4032b3be0825de8cdb7bf60e536bd286ec16a293bfa21e6eacd7bcfe12f76f9c9cfcbe511de54761df295253c81a81c65fe63c759c7", 16).expect("digits");
        let mut padded = BigUint::from_bytes_be(&block).modpow(&private, &modulus).to_bytes_be();
        // The zero in front is gone.
        let (seed, block) = padded.split_at_mut(SHA1_OUTPUT_LEN);
        mask(seed, block);
        mask(block, seed);
        let text: Vec<u8> = block[block.len() - 7..].iter().map(|byte| byte ^ 7).collect();
        assert_eq!(text, b"secret\0");
        assert_eq!(block[..SHA1_OUTPUT_LEN], sha1(&[]));
        assert_eq!(block[block.len() - 8], 1);
    }
}
