//! Verifies JWT signatures with `ring`.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use signature::Verifier;

/// Only verifies: nothing signs tokens here.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs the provider for the process, unless one is installed already.
pub(super) fn install() {
    let _ = RING.install_default();
}

fn verifier_factory(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let bytes = || key.try_get_as_bytes().map(<[u8]>::to_vec);
    let key = match (algorithm, key.kind()) {
        (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => PublicKey::Rsa {
            n: n.clone(),
            e: e.clone(),
        },
        (Algorithm::ES256, _) => PublicKey::Other(UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes()?)),
        (Algorithm::EdDSA, _) => PublicKey::Other(UnparsedPublicKey::new(&ED25519, bytes()?)),
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    Ok(Box::new(SignatureVerifier {
        algorithm: *algorithm,
        key,
    }))
}

/// A public key in the form that `ring` takes.
enum PublicKey {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Other(UnparsedPublicKey<Vec<u8>>),
}

/// Verifies signatures of one algorithm with one key.
struct SignatureVerifier {
    algorithm: Algorithm,
    key: PublicKey,
}

impl Verifier<Vec<u8>> for SignatureVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match &self.key {
            PublicKey::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            PublicKey::Other(key) => key.verify(message, signature),
        };
        // The details are not returned to the caller.
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for SignatureVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::jwk::Jwk;

    use super::*;

    /// The examples of RFC 7515, A.2 and A.3, and of RFC 8037, A.4: key, signed message, signature.
    const EXAMPLES: [(Algorithm, &str, &str, &str); 3] = [
        (
            Algorithm::RS256,
            r#"{"kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#,
            "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        ),
        (
            Algorithm::ES256,
            r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
            "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
        (
            Algorithm::EdDSA,
            r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#,
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ),
    ];

    #[test]
    fn the_signatures_of_the_rfcs_verify_and_altered_ones_do_not() {
        install();
        for (algorithm, jwk, message, signature) in EXAMPLES {
            let jwk: Jwk = serde_json::from_str(jwk).unwrap();
            let key = DecodingKey::from_jwk(&jwk).unwrap();
            let verified = |message: &str, signature: &str| {
                jsonwebtoken::crypto::verify(signature, message.as_bytes(), &key, algorithm).unwrap()
            };
            assert!(verified(message, signature), "{algorithm:?}");
            assert!(!verified(&message.replacen('e', "f", 1), signature), "{algorithm:?}");
            let (first, rest) = signature.split_at(1);
            let other = if first == "a" { "b" } else { "a" };
            assert!(!verified(message, &format!("{other}{rest}")), "{algorithm:?}");
        }
    }

    #[test]
    fn other_signature_algorithms_are_unsupported() {
        let key = DecodingKey::from_secret(b"secret");
        for algorithm in [Algorithm::HS256, Algorithm::RS256, Algorithm::RS512, Algorithm::PS256] {
            assert!(verifier_factory(&algorithm, &key).is_err(), "{algorithm:?}");
        }
    }
}
