//! The map as a picture: the tree, and below it the path kind of each pair in colours.

use std::fmt::Write;

use crate::device::DeviceKind;
use crate::map::Map;
use crate::path::{PATH_KINDS, PathKind};
use crate::tree::{Branch, tree};

/// Sizes in pixels.
const ROW: usize = 24;
const STEP: usize = 26;
const LETTER: usize = 8;
const MARGIN: usize = 16;
const CELL: usize = 84;

/// An SVG document.
#[must_use]
pub fn svg(map: &Map) -> String {
    let mut lines = Vec::new();
    let root = tree(map);
    flatten(&root, 0, &mut lines);
    let widest = lines.iter().map(|(depth, it)| depth * STEP + it.label.chars().count() * LETTER);
    let matrix_width = (map.devices.len() + 1) * CELL;
    let width = widest.max().unwrap_or(0).max(matrix_width).max(640) + 3 * MARGIN;
    let matrix_top = MARGIN + (lines.len() + 1) * ROW;
    let legend_top = matrix_top + (map.devices.len() + 2) * ROW;
    let height = legend_top + (PATH_KINDS.len() + 1) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (row, (depth, branch)) in lines.iter().enumerate() {
        line(&mut out, row, *depth, branch);
    }
    if map.devices.len() > 1 {
        matrix(&mut out, map, matrix_top);
        legend(&mut out, legend_top);
    }
    out.push_str("</svg>\n");
    out
}

fn flatten<'a>(branch: &'a Branch, depth: usize, lines: &mut Vec<(usize, &'a Branch)>) {
    lines.push((depth, branch));
    branch.children.iter().for_each(|child| flatten(child, depth + 1, lines));
}

fn line(out: &mut String, row: usize, depth: usize, branch: &Branch) {
    let (x, y) = (MARGIN + depth * STEP, MARGIN + row * ROW);
    let fill = match branch.kind {
        None => "#eceff1",
        Some(DeviceKind::Drive | DeviceKind::RemoteDrive) => "#c8e6c9",
        Some(DeviceKind::Nic) => "#bbdefb",
        Some(DeviceKind::Gpu) => "#ffe0b2",
    };
    let width = branch.label.chars().count() * LETTER + 12;
    if depth > 0 {
        let (from, middle) = (x - STEP / 2, y + ROW / 2 - 2);
        let way = format!("M{from} {y} V{middle} H{x}");
        put(out, &format!("<path d=\"{way}\" stroke=\"#90a4ae\" fill=\"none\"/>"));
    }
    bar(out, (x, y), width, fill);
    words(out, x + 6, y + 14, &branch.label);
}

fn matrix(out: &mut String, map: &Map, top: usize) {
    for (index, device) in map.devices.iter().enumerate() {
        words(out, MARGIN + (index + 1) * CELL + 4, top + 14, &device.name);
        words(out, MARGIN, top + (index + 1) * ROW + 14, &device.name);
        for (column, other) in map.devices.iter().enumerate() {
            let (x, y) = (MARGIN + (column + 1) * CELL, top + (index + 1) * ROW);
            cell(out, x, y, map.path(device, other));
        }
    }
}

fn legend(out: &mut String, top: usize) {
    for (index, path) in PATH_KINDS.iter().enumerate() {
        cell(out, MARGIN, top + index * ROW, *path);
        words(out, MARGIN + CELL + 4, top + index * ROW + 14, path.words());
    }
}

fn cell(out: &mut String, x: usize, y: usize, path: PathKind) {
    let fill = match path {
        PathKind::Same => "#eceff1",
        PathKind::Switch | PathKind::Switches => "#a5d6a7",
        PathKind::Root | PathKind::Bridges | PathKind::Nodes => "#fff59d",
        PathKind::Sockets => "#ef9a9a",
        PathKind::Unknown => "#cfd8dc",
    };
    bar(out, (x, y), CELL - 4, fill);
    words(out, x + 4, y + 14, path.name());
}

/// A bar one row high.
fn bar(out: &mut String, (x, y): (usize, usize), width: usize, fill: &str) {
    let size = format!("width=\"{width}\" height=\"{}\"", ROW - 4);
    put(out, &format!("<rect x=\"{x}\" y=\"{y}\" {size} rx=\"4\" fill=\"{fill}\"/>"));
}

fn words(out: &mut String, x: usize, y: usize, text: &str) {
    let safe = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    put(out, &format!("<text x=\"{x}\" y=\"{y}\">{safe}</text>"));
}

fn put(out: &mut String, element: &str) {
    writeln!(out, "{element}").expect("a String takes everything");
}
