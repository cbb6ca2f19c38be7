// A bundle and a trusted root, read and checked by the JavaScript clients of Sigstore: one line of JSON, or the
// error and exit code 1. Arguments: folder of node_modules, bundle, trusted root, identity, issuer.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, bundleFile, rootFile, identity, issuer] = process.argv.slice(2);
const load = createRequire(join(modules, "index.js"));
const { bundleFromJSON } = load("@sigstore/bundle");
const { TrustedRoot } = load("@sigstore/protobuf-specs");
const { toSignedEntity, toTrustMaterial, Verifier } = load("@sigstore/verify");

const json = (file) => JSON.parse(readFileSync(file, "utf8"));
try {
  const trusted = toTrustMaterial(TrustedRoot.fromJSON(json(rootFile)));
  const verifier = new Verifier(trusted, { ctlogThreshold: 1, tlogThreshold: 1 });
  // the name is a pattern there
  const name = `^${identity.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;
  const signer = verifier.verify(toSignedEntity(bundleFromJSON(json(bundleFile))), {
    subjectAlternativeName: name,
    extensions: { issuer },
  });
  const { subjectAlternativeName, extensions } = signer.identity;
  console.log(JSON.stringify({ identity: subjectAlternativeName, issuer: extensions.issuer }));
} catch (error) {
  console.error(`${error.code}: ${error.message}`);
  process.exit(1);
}
