//! Documents that are generated: the maps from the source of their layouts, the drop reasons
//! from their table. `SHUNT_UPDATE=1` writes them anew.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result, ensure};
use proxy_common::DropReason;
use syn::{
    Attribute, Expr, Fields, File, GenericArgument, Item, ItemConst, ItemStruct, Lit, Meta, PathArguments,
    Type,
};

use tests::documents::root;

const BEGIN: &str = "<!-- begin of the generated part -->\n";
const END: &str = "<!-- end of the generated part -->\n";

/// Compares the generated part of a page with what it is to be, or writes it.
fn check(page: &str, generated: &str) -> Result<()> {
    let path = root().join(page);
    let text = fs::read_to_string(&path).with_context(|| page.to_owned())?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{page} lacks {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{page} lacks {END}"))?;
    let expected = format!("{before}{BEGIN}{generated}{END}{after}");
    if std::env::var_os("SHUNT_UPDATE").is_some() {
        return Ok(fs::write(&path, expected)?);
    }
    ensure!(text == expected, "{page} is out of date: run this test with SHUNT_UPDATE=1");
    Ok(())
}

#[test]
fn the_drop_reasons_are_those_of_the_code() -> Result<()> {
    let mut text = String::from("\n| number | reason | meaning |\n| --- | --- | --- |\n");
    for reason in DropReason::ALL {
        let _ = writeln!(text, "| {} | `{}` | {} |", *reason as u32, reason.name(), reason.help());
    }
    text.push('\n');
    check("docs/drop-reasons.md", &text)
}

#[test]
fn the_maps_are_those_of_the_code() -> Result<()> {
    let folder = root().join("proxy-common/src/maps");
    let mut files: Vec<_> = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.file_name() != Some("mod.rs".as_ref()));
    files.sort();
    let mut text = String::new();
    for path in files.iter().filter(|path| path.is_file()) {
        map(&mut text, path).with_context(|| path.display().to_string())?;
    }
    text.push('\n');
    check("docs/maps.md", &text)
}

/// One map: what its module says of it, its rows and their constants.
fn map(text: &mut String, path: &Path) -> Result<()> {
    let file: File = syn::parse_file(&fs::read_to_string(path)?)?;
    let about = docs(&file.attrs);
    let (names, about) = about.split_once(": ").context("no names of maps")?;
    let _ = write!(text, "\n## {}\n\n{}\n", names.replace('`', ""), sentence(about));
    for item in &file.items {
        match item {
            Item::Const(capacity) if capacity.ident == "CAPACITY" => {
                if let Some(value) = value(capacity) {
                    let _ = write!(text, "\nRows by default: {value}{}.\n", growth(&file.items));
                }
            }
            Item::Struct(row) if is_layout(row) => layout(text, row),
            Item::Mod(flags) if flags.ident == "flags" => {
                let bits = flags.content.iter().flat_map(|(_, items)| items).filter_map(constant);
                constants(text, &docs(&flags.attrs), bits);
            }
            Item::Impl(numbers) => {
                let constant = |item: &syn::ImplItem| match item {
                    syn::ImplItem::Const(c) => {
                        Some((c.ident.to_string(), number(&c.expr)?, sentence(&docs(&c.attrs))))
                    }
                    _ => None,
                };
                let Type::Path(of) = &*numbers.self_ty else { continue };
                let of = of.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
                let found: Vec<_> = numbers.items.iter().filter_map(constant).collect();
                constants(text, &format!("`{of}`:"), found.into_iter());
            }
            _ => {}
        }
    }
    Ok(())
}

/// How far a map grows by itself.
fn growth(items: &[Item]) -> String {
    let most = items.iter().find_map(|item| match item {
        Item::Const(most) if most.ident == "MOST" => value(most),
        _ => None,
    });
    most.map_or_else(String::new, |most| format!(" at first, and {most} at the most"))
}

/// A struct whose bytes the kernel has.
fn is_layout(row: &ItemStruct) -> bool {
    let is_c = |attribute: &Attribute| {
        attribute.path().is_ident("repr")
            && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string().starts_with('C'))
    };
    row.attrs.iter().any(is_c)
}

fn layout(text: &mut String, row: &ItemStruct) {
    let Fields::Named(fields) = &row.fields else { return };
    let _ = write!(
        text,
        "\n`{}`: {}\n\n| field | type | |\n| --- | --- | --- |\n",
        row.ident,
        lower(&sentence(&docs(&row.attrs)))
    );
    for field in &fields.named {
        let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| `{name}` | {} | {} |", type_name(&field.ty), sentence(&docs(&field.attrs)));
    }
}

fn constant(item: &Item) -> Option<(String, String, String)> {
    let Item::Const(constant) = item else { return None };
    Some((constant.ident.to_string(), value(constant)?, sentence(&docs(&constant.attrs))))
}

fn constants(text: &mut String, title: &str, rows: impl Iterator<Item = (String, String, String)>) {
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return;
    }
    let title = sentence(title).trim_end_matches(['.', ':']).to_owned();
    let _ = write!(text, "\n{title}:\n\n| name | value | |\n| --- | --- | --- |\n");
    for (name, value, about) in rows {
        let _ = writeln!(text, "| `{name}` | {value} | {about} |");
    }
}

fn value(constant: &ItemConst) -> Option<String> {
    number(&constant.expr)
}

/// A number as it is written, also inside the type that wraps it.
fn number(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => Some(number.to_string().replace('_', " ")),
            _ => None,
        },
        Expr::Call(call) => number(call.args.first()?),
        _ => None,
    }
}

fn type_name(ty: &Type) -> String {
    match ty {
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return String::new() };
            let name = if last.ident == "A" { "address".to_owned() } else { last.ident.to_string() };
            let PathArguments::AngleBracketed(arguments) = &last.arguments else { return name };
            let inner = arguments.args.iter().filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(type_name(ty)),
                _ => None,
            });
            format!("{name} of {}", inner.collect::<Vec<_>>().join(", "))
        }
        Type::Array(array) => format!("array of {}", type_name(&array.elem)),
        _ => String::from("other"),
    }
}

/// The lines of a doc comment.
fn docs(attributes: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        if let Meta::NameValue(pair) = &attribute.meta
            && let Expr::Lit(literal) = &pair.value
            && let Lit::Str(text) = &literal.lit
        {
            lines.push(text.value().trim_start().to_owned());
        }
    }
    lines.join("\n")
}

/// The first paragraph in one line, without links into the code.
fn sentence(docs: &str) -> String {
    let first = docs.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let mut parts = first.split("[`");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("`]").unwrap_or((part, ""));
        // Where it leads, if that is not by its name.
        let rest = rest.strip_prefix('(').and_then(|rest| Some(rest.split_once(')')?.1)).unwrap_or(rest);
        text.push_str(&format!("`{name}`{rest}"));
    }
    // A bar would end the cell.
    text.replace('|', "\\|").trim().to_owned()
}

fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
