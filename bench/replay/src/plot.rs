//! The report as a picture: hits over the size of the cache, a field for each stream, a line for
//! each policy.

use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, DrawingArea, IntoDrawingArea, IntoLogRange, LineSeries,
    PathElement, RGBColor, SVGBackend, SeriesLabelPosition, WHITE,
};

use crate::report::{Report, Run, StreamReport};

/// Colours that stay apart for most kinds of colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];
const FONT: &str = "sans-serif";
const FIELD: (u32, u32) = (720, 440);
/// Fields beside each other at most.
const ACROSS: usize = 2;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An SVG document.
///
/// # Errors
/// The painter's error.
pub fn plot(report: &Report) -> Result<String, String> {
    let mut svg = String::new();
    paint(report, &mut svg).map_err(|why| format!("the plot: {why}"))?;
    Ok(svg)
}

fn paint(report: &Report, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let across = report.streams.len().clamp(1, ACROSS);
    let down = report.streams.len().div_ceil(ACROSS).max(1);
    let (width, height) = (FIELD.0 * u32::try_from(across)?, FIELD.1 * u32::try_from(down)?);
    let canvas = SVGBackend::with_string(svg, (width, height)).into_drawing_area();
    canvas.fill(&WHITE)?;
    for (stream, field) in report.streams.iter().zip(canvas.split_evenly((down, across))) {
        draw(stream, &field)?;
    }
    canvas.present()?;
    Ok(())
}

fn draw(stream: &StreamReport, field: &Canvas<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let blocks = || stream.runs.iter().map(|run| run.blocks.max(1) as f64);
    let low = blocks().fold(f64::INFINITY, f64::min).min(1e12);
    let high = blocks().fold(low, f64::max);
    let best = stream.runs.iter().map(|run| run.hit_ratio).fold(0.01, f64::max);
    let facts = stream.facts;
    let title = format!("{}: {} requests, {} blocks", stream.name(), facts.requests, facts.blocks);
    let mut chart = ChartBuilder::on(field)
        .caption(title, (FONT, 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((low * 0.9..high * 1.1).log_scale(), 0.0..best * 1.1)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("blocks that the cache holds")
        .y_desc("hits inside unbroken prefixes")
        .x_label_formatter(&|blocks| format!("{blocks:.0}"))
        .y_label_formatter(&|ratio| format!("{ratio:.2}"))
        .draw()?;
    for ((policy, points), colour) in lines(stream).into_iter().zip(COLOURS.iter().cycle()) {
        let dots = points.clone().into_iter().map(|at| Circle::new(at, 3, colour.filled()));
        chart.draw_series(dots)?;
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

/// The runs of each policy, from the smallest cache to the largest.
fn lines(stream: &StreamReport) -> Vec<(&str, Vec<(f64, f64)>)> {
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    let mut runs: Vec<&Run> = stream.runs.iter().collect();
    runs.sort_by_key(|run| run.blocks);
    for run in &stream.runs {
        if lines.iter().any(|(policy, _)| *policy == run.policy) {
            continue;
        }
        let own = runs.iter().filter(|other| other.policy == run.policy);
        let points = own.map(|run| (run.blocks.max(1) as f64, run.hit_ratio)).collect();
        lines.push((&run.policy, points));
    }
    lines
}
