// The path of the program, which the package for this platform contains.
const name = `fencepost-server-${process.platform}-${process.arch}`;
try {
  exports.program = require.resolve(`${name}/fencepost`);
} catch (error) {
  throw new Error(`fencepost-server: the package ${name} is not installed; optional dependencies must be`, { cause: error });
}
