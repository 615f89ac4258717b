//! For build scripts: compiles BPF C, and generates what Rust needs of it.
//!
//! Programs may include the headers of this crate's `include/cachelane`.
//!
//! A module that has a program includes what is generated, which is a module `skel`:
//!
//! ```ignore
//! include!(concat!(env!("OUT_DIR"), "/NAME.skel.rs"));
//! ```
//!
//! Beside libbpf-cargo's skeleton it has `Maps`, with a [`Map`](crate::Map) for each of the object's
//! but its constants; `constants`, with the numbers of all C enums; and [`Plain`](crate::Plain) for
//! the structs of `types` of which it holds. A compiler keeps in an
//! object only the types that it needs; for the enums that Rust needs besides, a program has a
//! constant of a struct that names them (`const volatile struct shared shared;`).

use std::path::PathBuf;
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::btf::types::{Array, Enum, Int, IntEncoding, MemberAttr, Ptr, Struct, Union};
use libbpf_rs::btf::{Btf, BtfType, TypeId};

/// What generated code does that ours may not. Programs may have no maps.
const ALLOWED: &str = "#[allow(unreachable_pub, unsafe_code, unused_qualifications, unused_variables, \
                       clippy::undocumented_unsafe_blocks)]";

/// Generates `NAME.skel.rs` of `src/bpf/NAME.bpf.c` for each of these names; `args` are for the
/// compiler.
///
/// # Panics
/// If it fails, as build scripts do.
pub fn skeletons(names: &[&str], args: &[&str]) {
    for name in names {
        let (mut builder, out) = compile(name, args);
        let path = out.join(format!("{name}.skel.rs"));
        builder.generate(&path).unwrap_or_else(|error| panic!("{name}'s skeleton: {error:?}"));
        let mut skeleton = fs::read_to_string(&path).expect("the skeleton was just written");
        let btf = btf(&out, name);
        let constants = constants(&btf);
        let plain: String = btf
            .type_by_kind::<Struct<'_>>()
            .filter(|found| size_if_plain(&btf, found.type_id()).is_some())
            .filter_map(|found| Some(found.name()?.to_string_lossy().into_owned()))
            .filter(|name| skeleton.contains(&format!("pub struct {name} {{")))
            .map(|name| format!("unsafe impl ::bpf::Plain for types::{name} {{}}\n"))
            .collect();
        skeleton += &(maps(&skeleton) + &constants + &plain);
        let skeleton = format!("{ALLOWED}\nmod skel {{\n{skeleton}}}\n");
        fs::write(&path, skeleton).expect("OUT_DIR can be written");
    }
}

/// Generates `NAME.rs` of `src/bpf/NAME.bpf.c` for each of these names, for where no skeleton is
/// needed: the object is its `OBJECT`, and it has `constants` as a skeleton has; `args` are for the
/// compiler.
///
/// # Panics
/// If it fails, as build scripts do.
pub fn objects(names: &[&str], args: &[&str]) {
    for name in names {
        let (_, out) = compile(name, args);
        let object =
            "static OBJECT: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/NAME.o\"));\n";
        let text = object.replace("NAME", name) + &constants(&btf(&out, name));
        fs::write(out.join(format!("{name}.rs")), text).expect("OUT_DIR can be written");
    }
}

fn compile(name: &str, args: &[&str]) -> (SkeletonBuilder, PathBuf) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian's clang does not look in the multiarch folder when the target is BPF.
    let system = format!("-I/usr/include/{arch}-linux-gnu");
    let ours = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    // The kernel is told of what file a line is; where that file was compiled is nobody's business, and
    // would make another object of it elsewhere.
    let here =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let crates = here.parent().expect("a crate has a folder around it").display();
    let nameless = format!("-ffile-prefix-map={crates}/=");
    let source = format!("src/bpf/{name}.bpf.c");
    let mut builder = SkeletonBuilder::new();
    builder
        .source(&source)
        .obj(out.join(format!("{name}.o")))
        .clang_args([&[system.as_str(), ours, &nameless, "-Wall", "-Werror"], args].concat());
    if let Err(error) = builder.build() {
        panic!("building {source} failed (are clang and libelf-dev there?): {error:?}");
    }
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-changed={}", &ours[2..]);
    (builder, out)
}

/// A struct of all maps that can be read or written.
fn maps(skeleton: &str) -> String {
    let between =
        |line: &str, end: &str| Some(line.strip_prefix("pub ")?.strip_suffix(end)?.into());
    let lines = || skeleton.lines().map(str::trim);
    let maps = |line| between(line, ": libbpf_rs::MapMut<'obj>,").filter(|name| name != "rodata");
    let all: Vec<String> = lines().filter_map(maps).collect();
    let each = |text: &str| all.iter().map(|map| text.replace("MAP", map)).collect::<String>();
    let names = lines().filter_map(|line| between(line, "Maps<'obj> {")).collect::<Vec<String>>();
    let skeletons = names.iter().find(|name| !name.starts_with("struct Open"));
    let name = skeletons.map_or_else(String::new, |name| name.replace("struct ", ""));
    format!(
        "#[derive(Debug)]\n#[allow(dead_code)]\npub(crate) struct Maps {{ {} }}\n\
         #[allow(dead_code)]\nimpl Maps {{\n\
         pub(crate) fn of(maps: &{name}Maps<'_>) -> libbpf_rs::Result<Self> {{ Ok(Self {{ {} }}) }}\n\
         pub(crate) fn all(&self) -> [&::bpf::Map; {}] {{ [{}] }}\n}}\n",
        each("pub(crate) MAP: ::bpf::Map, "),
        each("MAP: ::bpf::Map::of(&maps.MAP)?, "),
        all.len(),
        each("&self.MAP, "),
    )
}

fn btf(out: &std::path::Path, name: &str) -> Btf<'static> {
    Btf::from_path(out.join(format!("{name}.o"))).expect("the object was just built")
}

/// A module with a constant for each value of C's enums.
fn constants(btf: &Btf<'_>) -> String {
    let values = |found: Enum<'_>| {
        let line = |member: libbpf_rs::btf::types::EnumMember<'_>| {
            let name = member.name?.to_string_lossy();
            Some(format!("pub const {name}: u32 = {};\n", member.value))
        };
        found.iter().filter_map(line).collect::<String>()
    };
    let all: String = btf.type_by_kind::<Enum<'_>>().map(values).collect();
    format!(
        "#[allow(dead_code, missing_docs, unreachable_pub)]\npub(crate) mod constants {{\n{all}}}\n"
    )
}

/// The size in bytes of a type of which any bytes make a value, and none of a value is padding.
fn size_if_plain(btf: &Btf<'_>, id: TypeId) -> Option<usize> {
    let ty = btf.type_by_id::<BtfType<'_>>(id)?.skip_mods_and_typedefs();
    if let Ok(int) = Int::try_from(ty) {
        let is_bool = matches!(int.encoding, IntEncoding::Bool);
        return (!is_bool).then_some(usize::from(int.bits) / 8);
    }
    if Ptr::try_from(ty).is_ok() {
        return Some(8);
    }
    if let Ok(found) = Enum::try_from(ty) {
        return Some(libbpf_rs::btf::HasSize::size(&found));
    }
    if let Ok(array) = Array::try_from(ty) {
        let element = size_if_plain(btf, array.contained_type().type_id())?;
        return Some(element * array.capacity());
    }
    let member = |ty: TypeId, attr: MemberAttr| match attr {
        MemberAttr::Normal { .. } => size_if_plain(btf, ty),
        MemberAttr::BitField { .. } => None,
    };
    if let Ok(found) = Struct::try_from(ty) {
        let size = libbpf_rs::btf::HasSize::size(&found);
        let members = found.iter().map(|one| member(one.ty, one.attr));
        return (members.sum::<Option<usize>>()? == size).then_some(size);
    }
    let found = Union::try_from(ty).ok()?;
    let size = libbpf_rs::btf::HasSize::size(&found);
    let mut members = found.iter().map(|one| member(one.ty, one.attr));
    members.all(|one| one == Some(size)).then_some(size)
}
