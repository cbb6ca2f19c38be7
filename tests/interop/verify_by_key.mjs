// A bundle, checked by the JavaScript clients of Sigstore with a public key and nothing else: exit code 0, or the
// error and 1. Arguments: folder of node_modules, bundle, public key as PEM.
import { createPublicKey } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [modules, bundleFile, keyFile] = process.argv.slice(2);
const load = createRequire(join(resolve(modules), "index.js"));
const { bundleFromJSON } = load("@sigstore/bundle");
const { toSignedEntity, Verifier } = load("@sigstore/verify");

const publicKey = createPublicKey(readFileSync(keyFile));
const trusted = {
  certificateAuthorities: [],
  timestampAuthorities: [],
  tlogs: [],
  ctlogs: [],
  publicKey: () => ({ publicKey, validFor: () => true }),
};
try {
  const thresholds = { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 };
  const bundle = bundleFromJSON(JSON.parse(readFileSync(bundleFile, "utf8")));
  new Verifier(trusted, thresholds).verify(toSignedEntity(bundle));
} catch (error) {
  console.error(`${error.code}: ${error.message}`);
  process.exit(1);
}
